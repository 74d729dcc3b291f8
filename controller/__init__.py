"""The controller: watches, decides, acts.

The packages, from the top; each may import only those below it:

* `manager`        composes the reconcilers; the only package that imports Kopf
* `offline`        questions about recorded clusters: solve, explain
* `reconcilers`    loops that act: take a snapshot, ask a pure package, write through a port
* `aws`, `kube`    adapters of the two ports; they translate and never decide
* `telemetry`      metrics, events, logs
* `apiserver`      port: what we ask of Kubernetes
* `disruption`     pure: which nodes should go, and what replaces them
* `scheduling`     pure: which nodes should exist
* `state`          pure: the mirror of the cluster and its frozen snapshots
* `cloudprovider`  port: what we ask of a cloud
* `constraints`    pure: the algebra of labels, taints, resources, ports
* `apis`           the nouns on the wire
* `options`        every setting, once
"""
