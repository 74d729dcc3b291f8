"""Decides which nodes to disrupt, and the nodes that replace them, within budgets.

The package is pure: it reads no clock, and the time is an argument.

Terms:

    problem    the input of a decision: the cluster at a point in time, and the settings
    candidate  a node that may be disrupted: managed by Joiner, initialized and not blocked
    command    nodes to disrupt together, for one reason, and where their pods move
    group      nodes of a consolidation plan that are removed together; becomes a command
    instalment a part of a group or command that is too large for the budgets, executed by itself
    unit       all nodes that run pods of one gang, or of gangs that share nodes
    engine     `controller.scheduling`, which decides where pods schedule
    arrays     the cluster as NumPy arrays (`model`), in which consolidation searches for plans
    static     of a NodePool: with a fixed number of nodes (`spec.replicas`); others are dynamic
"""
