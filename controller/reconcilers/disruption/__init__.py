"""Carries out the commands that `controller.disruption` decides.

One loop runs each method in turn and begins the first command that passes validation.
"""
