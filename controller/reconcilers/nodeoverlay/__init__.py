"""Writes whether each NodeOverlay is in effect, and if not, why: an invalid field or a conflict."""
