"""Decides which nodes to disrupt, and the nodes that replace them, within budgets.

The package is pure: it reads no clock, and the time is an argument.
"""
