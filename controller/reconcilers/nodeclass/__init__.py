"""Finds what an EC2NodeClass asks for, says so in its status, and cleans up after it."""
