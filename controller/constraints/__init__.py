"""The algebra of placement: requirements, taints, resources, host ports, selectors.

Values in, values out. Two requirements intersect, a pod's resources add up, a
taint is tolerated: each as Kubernetes and Karpenter document it, and without
knowing what a cloud, a cluster or a solve is.
"""
