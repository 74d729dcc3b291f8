"""Compare Joiner's and Karpenter's engines on the same worlds: engines, worlds, comparison."""
