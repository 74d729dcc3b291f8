"""Karpenter's black-box suites, run against Joiner on the testbed."""
