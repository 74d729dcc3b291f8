"""Kubernetes' built-in objects, reduced to the fields that the controller reads."""
