"""The port to a cloud: what Joiner asks of it, and what it may answer.

Nothing here knows AWS. `provider` is the protocol in prose, `instancetypes`
the nouns that come back, `errors` what may come instead of a node, and `fake`
a small cloud in memory that keeps the protocol, for tests.
"""
