"""Writes whether each NodeOverlay is in effect, and if not, which overlay it conflicts with."""
