"""Commands on recorded worlds: the engine runs as in the controller, on a file.

The commands write only what the user asks for. docs/reference/formats.md describes the formats.
"""
