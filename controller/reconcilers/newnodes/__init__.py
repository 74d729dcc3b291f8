"""Code shared by all reconcilers that create nodes or read what can be launched.

It has the available instance types, the content of NodeClaims, and the planned nodes of pods.
"""
