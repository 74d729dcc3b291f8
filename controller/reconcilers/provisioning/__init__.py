"""Creates NodeClaims for pending pods.

`batchwindow` waits until no more pods arrive, `provisioner` runs the rounds, and `nomination` and
`startupgate` make sure that pods are bound to the nodes planned for them. A held node has Joiner's
taint `taints.HELD`, which keeps pods off it. A node opens when pods can be bound to it: when it is
Ready and not held.
"""
