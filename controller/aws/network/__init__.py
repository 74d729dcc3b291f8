"""The network of instances: subnets, security groups, placement groups and zonal shift."""
