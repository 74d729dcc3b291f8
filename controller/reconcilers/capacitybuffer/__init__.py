"""Resolves every CapacityBuffer to the number and the template of its pods."""
