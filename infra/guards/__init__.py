"""Refuse a harmful change before it begins; verify after a destroy that nothing is left."""
