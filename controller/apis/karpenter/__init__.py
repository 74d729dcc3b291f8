"""The custom resources of Karpenter and of Joiner, such as NodePool, NodeClaim and Disruption."""
