"""A whole small region on one machine.

A real Kubernetes control plane, a test cloud, the kubelets of its instances
and the pods of its system nodes: what an embedded run, a demo and the system
tests stand on. Three laws hold in this room:

* It knows neither the controller nor the bundle; they meet it where they meet
  a real region, at the Kubernetes API and at the AWS endpoint.
* A part owns what it starts: its processes, ports and directory. `start()`
  returns when the part is healthy and undoes itself when it cannot be;
  `stop()` may be called at any moment, also twice.
* Nothing outlives its owner. Every process carries the directory it belongs to
  in its environment (`processes.owned.MARKER`), and a keeper ends whatever carries
  it when the owner is gone, however the owner went.

From the doors down, each room imports only those below it:

* `commandline`, `environment`  the doors; `progress` is what a person hears meanwhile, `trees` how
  plain values are walked
* `demo`       the main job from end to end
* `region`     the parts as a whole, and the control plane among them
* `cloud`      AWS; `nodes` the kubelets of its instances; `workloads` the pods of system nodes;
  `plugins`    Pulumi's engine with its plugins
* `kube`       the Kubernetes API; `processes` what runs, and ends with its owner

Linux only: the proof of the last law reads `/proc`, and pods live on
addresses of 127.0.0.0/8.
"""
