"""The Kubernetes API as the testbed speaks it: kubeconfigs, plain JSON, exact quantities.

Knows no part of the testbed; whoever plays a kubelet, a driver or an administrator uses it.
"""
