"""Karpenter's black-box regression suite, run against Joiner on the testbed."""
