"""Devices, and how claims are met by them."""
