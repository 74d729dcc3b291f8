"""Dynamic resource allocation (DRA): devices, and the claims that they are allocated to.

Here a claim is a ResourceClaim of a pod.
"""
