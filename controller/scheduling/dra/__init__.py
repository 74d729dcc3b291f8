"""Devices that pods claim (dynamic resource allocation): what there is, and who gets what."""
