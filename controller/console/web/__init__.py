"""A page on the cluster, served over HTTP: read-only, without a build step or an external host.

This process reads the cluster and serves the page. The solver's process computes the decisions and
the answers to questions.
"""
