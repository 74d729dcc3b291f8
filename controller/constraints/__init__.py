"""The constraints of scheduling: requirements, taints, resources, host ports, selectors.

The functions compute on values only and do no I/O. Requirements intersect, a pod's requests add up,
a taint is tolerated: each as Kubernetes and Karpenter document it. Nothing here depends on a cloud,
a cluster or a solve.
"""
