"""What a cluster would cost under Joiner, and what prevents it from costing less."""
