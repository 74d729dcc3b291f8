"""A page on the cluster, served over HTTP: read-only, without a build step or an external host.

A worker process reads the cluster, decides and answers questions; the event loop forwards bytes.
"""
