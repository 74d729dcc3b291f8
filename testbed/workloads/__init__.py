"""The system nodes of the testbed, and the pods on them as local processes.

What `pulumi up` deploys is what runs: every container of a pod bound to a system node becomes a
process, started from its own pod spec and treated as a kubelet treats it: environment, projected
tokens, probes, restarts with back-off, graceful stop. What a container would have brought along
stands in as follows:

* The image is not used. `python` is the interpreter given, the working directory and PYTHONPATH
  are the checkout; a container without a command counts as running and has no process.
* The pod network is loopback: each pod has an address of its own in 127.0.0.0/8, told to it as
  BIND_ADDRESS. There are no Service addresses and no DNS.
* The mount at /var/run/secrets is a kubeconfig, told as KUBECONFIG, whose token is the pod's own.
* Tokens for AWS, which the webhook of `podidentity` has put into the pod's spec as it was created,
  lie in files of this machine; variables that name a mounted one, or the agent, name what is here.
* Other volumes, security contexts and resource limits have no effect.

`supervisor` stands above `pods`, that above `containers`; the rest are their tools.
"""

from testbed.workloads.supervisor import Workloads

__all__ = ["Workloads"]
