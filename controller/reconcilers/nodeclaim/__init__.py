"""The life of a NodeClaim, from the written intent to the dropped finalizer.

`lifecycle` launches, registers and initializes it, one small file per step;
`finalization` takes it down; `consolidatable` and `expiration` watch the clock;
`garbagecollection` mends what was lost between the cluster and the cloud.
"""
