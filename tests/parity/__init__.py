"""Joiner's answers compared with Karpenter's engine on a few generated clusters."""
