"""Nodes that have the devices their pods claim."""
