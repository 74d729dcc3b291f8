"""Placement of pending pods in topology domains and on existing nodes; `packing` packs the rest."""
