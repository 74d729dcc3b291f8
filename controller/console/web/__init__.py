"""A page on the cluster, served over HTTP: read-only, without a build step or an external host.

The event loop only passes bytes on. Reading the cluster, deciding and answering questions run in
one worker process.
"""
