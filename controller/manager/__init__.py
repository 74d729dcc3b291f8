"""The composition root, and the only room that knows Kopf.

`replica` is the life of one process, `assembly` lists every reconciler with its ports, and
`nudges` says which change concerns which of them. `handlers` is Kopf, the frame that starts
and stops the replica; it and `watches` turn what the API server tells into state. `loops`
keeps the reconcilers running, `leadership` holds the Lease, `solving` keeps arithmetic off
the event loop, `probes` answers the kubelet and the scraper.
"""
