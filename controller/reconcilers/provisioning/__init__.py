"""From pods that wait to NodeClaims that are written.

`batching` waits until pods have stopped arriving, `plan` remembers which claim
each pod was made a place on, `claims` writes an answer of the engine as
NodeClaims, `provisioner` runs one round after the other.
"""
