"""Questions about recorded worlds: the engine as it runs in the controller, on a file in place
of a cluster. Nothing is written but what is asked for. Formats are in docs/formats.md.
"""
