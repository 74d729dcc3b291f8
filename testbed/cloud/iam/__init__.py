"""IAM and STS: authentication of callers, and evaluation of policies."""
