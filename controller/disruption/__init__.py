"""Which nodes should go, and what replaces them.

From a snapshot to commands, under budgets. Pure: the clock is an argument.
"""
