"""The mirror of the cluster, and the frozen pictures taken of it.

`cluster` follows events and answers questions about now; `snapshot` is what a
solve is asked with: frozen, complete, and the same whether it came from a live
cluster or from a recorded world. Nothing here waits, and nothing here writes.
"""
