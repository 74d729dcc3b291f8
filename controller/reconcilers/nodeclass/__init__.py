"""Resolves an EC2NodeClass to AWS resources, writes its status, and finalizes it."""
