"""Identities of nodes and controller: IAM roles, policies, Pod Identity, access entries."""
