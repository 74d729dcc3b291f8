"""Drains nodes before AWS interrupts their instances."""
