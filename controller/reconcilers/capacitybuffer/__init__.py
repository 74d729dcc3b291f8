"""Resolves every CapacityBuffer to the number and shape of its pods."""
