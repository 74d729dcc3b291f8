"""The command `record`: writes a live cluster as JSON, with names replaced on request.

The JSON is called a world: everything that a solve reads. Other commands read it in place of a
live cluster.
"""
