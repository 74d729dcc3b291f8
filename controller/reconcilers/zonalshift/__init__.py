"""Reports zonal shifts on the NodePools that they affect."""
