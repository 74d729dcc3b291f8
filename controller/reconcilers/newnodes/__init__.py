"""Code shared by all reconcilers that create nodes, for pending pods or as replacements.

It has the available instance types, the NodeClaim's content, and the pods planned for it.
"""
