"""The port to the Kubernetes API server: the calls that Joiner makes and the errors they raise.

`port` is the protocol. `errors` is the tree of errors. `fake` is an API server in memory for tests,
which implements resource versions, finalizers, deletion timestamps and watches. `readonly` refuses
writes.
"""
