"""Terminates Nodes: taint, drain, detach volumes, terminate the instance, remove the finalizer.

`terminator` runs these steps, `drain` decides which pods are evicted when, and `eviction` calls the
Eviction API.
"""
