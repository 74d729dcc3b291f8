"""The life of a NodeClaim, from its creation to the removal of its finalizer.

`lifecycle` launches, registers and initializes it, with one module per step. `finalization`
terminates it. `consolidatable` and `expiration` depend on the clock. `garbagecollection` deletes
NodeClaims without instances, and instances without NodeClaims.
"""
