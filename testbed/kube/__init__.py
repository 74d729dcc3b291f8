"""The Kubernetes API as the testbed speaks it: plain JSON, and quantities in exact numbers.

Knows no part of the testbed; whoever plays a kubelet, a driver or an administrator uses it.
"""
