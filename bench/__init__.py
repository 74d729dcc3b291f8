"""Benchmarks and campaigns that measure Joiner and compare it with Karpenter.

They are not tests.
"""
