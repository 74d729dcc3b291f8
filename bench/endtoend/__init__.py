"""Time from scaling Deployments to running pods, for Joiner and Karpenter in turn.

* `sides`       the two controllers, each deployed to an empty cluster and removed again
* `stopwatch`   when each pod, NodeClaim and node reaches each stage
"""
