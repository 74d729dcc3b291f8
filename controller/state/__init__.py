"""The mirror of the cluster, and frozen snapshots of it.

`cluster` follows watch events and answers queries about the present; `snapshot` is the input of the
engine: frozen, complete, and the same for a live cluster and a recorded one. Nothing here waits or
writes.
"""
