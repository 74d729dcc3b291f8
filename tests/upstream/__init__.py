"""Karpenter's own black-box regression suite, run against Joiner on the testbed."""
