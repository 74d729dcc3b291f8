"""The end of a Node: tainted, drained, detached, its instance terminated, its finalizer dropped.

`terminator` walks a node through these steps, `drain` decides which pods go when,
`eviction` asks the API server for each of them and respects its no.
"""
