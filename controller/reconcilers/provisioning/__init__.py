"""From pods that wait to NodeClaims that are written.

`batchwindow` waits until pods have stopped arriving, `provisioner` runs one round after the
other, `nomination` and `startupgate` see to it that pods come to the nodes made for them.
"""
