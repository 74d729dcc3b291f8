"""Which nodes to disrupt, and what replaces them: from a snapshot to commands, within budgets.

The package is pure: it reads no clock, and the time is an argument.
"""
