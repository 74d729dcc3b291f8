"""Tests of the runner for Karpenter's test suites."""
