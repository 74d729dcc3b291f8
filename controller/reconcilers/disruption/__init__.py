"""Acts on what the disruption room decides.

One loop asks each method in turn and carries out the first command that stands.
"""
