"""Says of every NodeOverlay whether it is in force, and if not, what contradicts it."""
