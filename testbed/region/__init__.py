"""The region as a whole: its parts, started in order and undone in reverse.

`testbed` owns all parts, `cluster` is the control plane among them, `supervisor` the process that
owns a testbed in the background.
"""
