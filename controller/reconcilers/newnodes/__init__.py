"""Code shared by all reconcilers that create nodes, for pending pods or as replacements.

It has the available instance types, the content of NodeClaims, and the planned nodes of pods.
"""
