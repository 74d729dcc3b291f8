"""Notices that instances end: from the interruption queue and from EC2's instance status."""
