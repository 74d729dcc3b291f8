"""Existing nodes and nodes being launched: remaining capacity, pods per node, attached volumes."""
