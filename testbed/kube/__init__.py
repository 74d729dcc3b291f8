"""The Kubernetes API for the testbed: kubeconfigs, plain JSON, exact quantities.

This package imports no other part of the testbed. The kubelets, the volume driver, the system
nodes, the demo and the stand-in for Pulumi's Kubernetes provider use it.
"""
