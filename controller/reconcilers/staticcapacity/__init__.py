"""Creates as many NodeClaims as a static NodePool's `replicas`, regardless of pods."""
