"""Writes whether every NodeOverlay is in effect, and if not, what contradicts it."""
