"""The mirror of the cluster (its objects, cached in memory), and frozen snapshots of it.

`cluster` applies watch events and returns the present state. `snapshot` is the frozen and complete
input of the engine (`controller.scheduling` and `controller.disruption`), the same for a live and
for a recorded cluster. Nothing here does I/O.
"""
