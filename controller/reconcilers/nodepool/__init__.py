"""Says of every NodePool whether it can make nodes, what it uses, and why not."""
