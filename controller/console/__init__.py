"""The user interfaces `joiner top` and `joiner web`; they only read the cluster."""
