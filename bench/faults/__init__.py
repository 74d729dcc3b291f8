"""The fault campaign: a whole controller, with faults injected into everything around it.

* `processes`    an event loop in virtual time whose processes can be killed and paused
* `region`       an in-memory AWS that keeps EC2's documented guarantees, and no others
* `cluster`      the rest of the cluster: kubelets, kube-scheduler, workloads
* `foreign`      objects and instances of other owners in the cluster and in the region
* `wires`        a process's clients of the API server and of AWS, where faults are injected
* `replicas`     replicas of the real controller, one of which leads
* `injection`    the faults by name and seed, and when they occur
* `auditor`      invariants that hold under every fault; shares no code with the controller
* `campaign`     one run from start to end
* `runs`         many runs in parallel
"""
