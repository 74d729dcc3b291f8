"""Control loops: read a snapshot, decide with a pure package, write through a port.

Reconcilers are level-triggered and idempotent: an event only triggers a run, and a repeated step
changes nothing. They communicate only through the cluster.

`reconcile` and `run_once` return the time until they must be called again. None means that only an
event, a change of an object, requires another call.

Terms:

    mirror   the cluster's objects, cached in memory (`state.cluster`); its revision increases with
             each change that may change what disruption decides
    engine   `controller.scheduling` and `controller.disruption`, usually in a process of their own
    leader   the replica that holds the Lease; an earlier leader was another replica or process
    round    one run of a loop that decides for the whole cluster
"""
