"""The record of a decision: the spec of its Disruption object, and its outcome."""
