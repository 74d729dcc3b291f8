"""Offerings, DaemonSet requests, limits, and variants for the pending pods, encoded as arrays."""
