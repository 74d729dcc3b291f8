"""Find the cheapest new nodes for pods, and a lower bound on the cost of any new nodes."""
