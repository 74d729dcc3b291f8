"""EKS: clusters, node groups, add-ons, access entries, Pod Identity."""
