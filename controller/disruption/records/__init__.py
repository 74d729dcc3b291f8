"""What is recorded of a decision: the spec of its Disruption, and its outcome."""
