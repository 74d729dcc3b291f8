"""User data: the configuration that an instance reads at its first start, by AMI family."""
