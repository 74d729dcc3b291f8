"""Hears from the cloud that an instance will go, and lets its node go first."""
