"""A whole small AWS region on one machine.

A real Kubernetes control plane, a test cloud, the kubelets of its instances, and two system nodes,
whose pods, such as the controller's, run as local processes. The demo, system tests and benchmarks
use it. Its contract has three rules:

* It imports neither the controller nor the Pulumi program. They use the testbed as they use a real
  region, through the Kubernetes API and the AWS endpoint.
* A part owns what it starts: processes, ports and a directory. `start()` returns once the part
  is healthy; if it fails, it cleans up first. `stop()` may be called at any time, also twice.
* No process outlives its owner. Every process of a part has the part's directory in its environment
  (`processes.owned.MARKER`). When the owner exits in any way, a keeper process ends every
  process with that marker.

The layers, from top to bottom; each module imports only those below it:

* `commandline`  the command line, which `python -m testbed` runs
* `demo`       Joiner's main use end to end
* `region`     starts and stops all parts; the control plane
* `cloud`      AWS; `nodes` the kubelets of its instances; `workloads` the pods of system nodes;
  `plugins`    Pulumi's engine with its plugins
* `kube`       the Kubernetes API; `processes` programs, and processes that end with their owner
* `environment`  the Python environment; `progress` reports progress to the user; `trees` walks JSON

Linux only: the last rule depends on `/proc`, and pods use addresses of 127.0.0.0/8.
"""
