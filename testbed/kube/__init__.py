"""The Kubernetes API for the testbed: kubeconfigs, plain JSON, exact quantities.

This package imports no other part of the testbed. Kubelets, drivers and administrators use it.
"""
