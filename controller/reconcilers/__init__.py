"""Loops that act: take a snapshot, ask a pure room, write through a port.

Level-triggered and idempotent: an event only nudges, and doing a step twice is
the same as doing it once. Reconcilers meet only through the cluster.
"""
