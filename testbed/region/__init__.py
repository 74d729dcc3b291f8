"""The whole region: its parts, started in order and stopped in reverse order.

`testbed` owns all parts. `cluster` is the control plane. `supervisor` is the process that owns
a testbed in the background.
"""
