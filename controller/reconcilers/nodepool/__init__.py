"""Writes whether every NodePool can create nodes, what it uses, and why not."""
