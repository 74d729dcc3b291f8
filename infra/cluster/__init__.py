"""The EKS cluster: found by name, or created with its network and add-ons."""
