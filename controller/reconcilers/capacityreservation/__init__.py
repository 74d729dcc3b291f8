"""Handles nodes whose capacity reservation ends or that EC2 removed from their reservation."""
