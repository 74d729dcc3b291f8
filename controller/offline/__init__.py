"""Commands that run the controller's engine on recorded worlds, or on a live cluster, read-only.

A world is a recorded cluster as a JSON file. docs/reference/formats.md describes the formats.
"""
