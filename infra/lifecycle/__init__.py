"""Dynamic Pulumi resources, and the destroy of a stack: drain, sweep, proof of removal."""
