"""Control loops: read a snapshot, decide with a pure package, write through a port.

Reconcilers are level-triggered and idempotent: an event only triggers a run, and a repeated step
changes nothing. They communicate only through the cluster. The mirror is the cluster's objects,
cached in memory (`state.cluster`).

`reconcile` and `run_once` return the time until they must be called again. None means that only an
event, a change of an object, requires another call.
"""
