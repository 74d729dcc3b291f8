"""From a static pool's `replicas` to as many NodeClaims, whether or not pods need them."""
