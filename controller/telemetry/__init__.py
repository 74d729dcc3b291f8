"""What the controller tells about itself: metrics, events, logs.

Names are Karpenter's; secrets never pass through here.
"""
