"""The port to Kubernetes: what we ask of the API server, and what it may answer.

`port` is the protocol in prose, `errors` the tree of refusals, `fake` an API
server in memory that keeps the protocol (resource versions, finalizers,
deletion timestamps, watches), for tests.
"""
