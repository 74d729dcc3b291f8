"""The port to a cloud provider: what Joiner requests of it, and what it returns.

The port is independent of AWS. `provider` defines the protocol, `instancetypes` the types that it
returns, and `errors` its exceptions. `fake` is an in-memory implementation for tests.
"""
