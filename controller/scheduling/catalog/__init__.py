"""Encode what can be bought: offerings, DaemonSet requests, limits, and variants for the pending
pods.
"""
