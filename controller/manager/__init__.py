"""The composition root of the controller, and the only package that uses Kopf.

`replica` runs one process. `assembly` creates every reconciler with its ports, and `nudges` maps
changes of the cluster to reconcilers. `handlers` runs Kopf, which starts and stops the replica; it
and `watches` apply the API server's changes to the cluster state. `loops` runs the reconcilers,
`leadership` holds the Lease, `solving` keeps computation off the event loop, and `probes` serves
the kubelet and the metrics scraper.
"""
