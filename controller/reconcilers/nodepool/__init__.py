"""Writes the status of each NodePool: its resources, and whether and why it cannot create nodes."""
