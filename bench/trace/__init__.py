"""Simulate days of a cluster on a virtual clock, with either Joiner or Karpenter deciding.

Everything except the decisions is the same for both: load, instance types, prices, node startup
times, the model of kube-scheduler, drains, budgets and batch windows. A run is a deterministic
function of its trace, its side and its seed.
"""
