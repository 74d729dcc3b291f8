"""Replaces nodes that have been unhealthy for too long."""
