"""The testbed's system nodes, whose pods run as local processes.

The testbed runs what `pulumi up` deploys. Every container of a pod on a system node becomes a
process. It is started from the pod spec and treated as a kubelet would: environment, projected
tokens, probes, restarts with back-off, graceful stop. The container's surroundings are emulated:

* Images are not used. `python` is the testbed's interpreter. The working directory and PYTHONPATH
  are the checkout. A container without a command counts as running and has no process.
* The pod network is loopback. Each pod has its own address in 127.0.0.0/8, which it gets as
  BIND_ADDRESS. Its status has the same address in 10.0.0.0/8, so that Services have endpoints.
  There are no Service addresses and no DNS.
* The mount at /var/run/secrets is a kubeconfig, passed as KUBECONFIG, with the pod's own token.
* The webhook of `podidentity` adds AWS tokens to the pod's spec at its creation. The tokens are
  local files. Variables that name a mounted token or the EKS Pod Identity agent get the values of
  their local counterparts.
* Other volumes, security contexts and resource limits have no effect.

`supervisor` uses `pods`, which uses `containers`; the other modules are their helpers.
"""

from testbed.workloads.supervisor import Workloads

__all__ = ["Workloads"]
