"""Carries out the commands that `controller.disruption` decides.

One loop runs the disruption methods in order, and begins the first command that passes validation.
"""
