"""The controller: watches, decides, acts.

A port is an interface to the outside, and an adapter implements it. A pure package does no I/O and
reads no clock. The packages, from the top; each may import only those below it:

* `console`        the terminal of `joiner top`, the page of `joiner web`
* `manager`        composes the reconcilers; the only package that imports Kopf
* `offline`        commands for recorded clusters, such as `solve` and `explain`
* `manual`         the text of `joiner run --help`
* `reconcilers`    loops that act: take a snapshot, ask a pure package, write through a port
* `aws`, `kube`    adapters of the two ports; they translate and never decide
* `telemetry`      metrics, events, logs
* `apiserver`      port to the Kubernetes API server
* `disruption`     pure: which nodes to disrupt, and what replaces them
* `scheduling`     pure: on which nodes pending pods run, and which new nodes to launch
* `state`          pure: the mirror (a copy of the cluster's objects), and immutable snapshots of it
* `cloudprovider`  port to a cloud
* `constraints`    pure: labels, taints, resources, host ports
* `options`        every setting, once
* `apis`           the types of Kubernetes objects
"""
