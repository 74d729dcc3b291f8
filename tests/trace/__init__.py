"""Whole days of a cluster on a simulated clock, in which one side or the other decides.

Everything but the decisions is the same for both sides: the load, the machines and their prices,
how long a node takes to come, kube-scheduler's stand-in, drains, budgets and batch windows. A run
is a function of its trace, its side and its seed.
"""
