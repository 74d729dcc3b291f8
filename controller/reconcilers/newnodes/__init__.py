"""What all who make nodes share, whether pods wait for them or they replace others.

What can be bought, how a claim is written, and which pods are expected on it.
"""
