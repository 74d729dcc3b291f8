"""Tests of the cloud provider port and of the in-memory cloud that implements it."""
