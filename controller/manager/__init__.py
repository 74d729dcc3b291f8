"""The composition root of the controller, and the only package that uses Kopf.

`replica` runs one process. `assembly` creates every reconciler with its ports, `observation` what
runs in mode `observe` instead. `handlers` runs Kopf, which starts and stops the replica; it and
`watches` apply the API server's changes to the cluster state. `nudges` reports these changes to the
reconcilers that they concern, which `loops` runs. `leadership` holds the Lease. `solver` keeps
computation off the event loop, `cloud` adds NodeOverlays and metrics to the cloud provider, and
`memory` limits the use of memory. `configuration` reads files that settings name. `probes` serves
the kubelet and the metrics scraper, `profiling` profiles of the process.
"""
