"""Creates NodeClaims for pending pods.

`batchwindow` waits until no more pods arrive, `provisioner` runs the rounds, and `nomination` and
`startupgate` make sure that pods are bound to the nodes planned for them.
"""
