"""The controller's telemetry: metrics, events and logs.

Names are Karpenter's; secrets never pass through here.
"""
