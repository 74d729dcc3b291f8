"""The command `advise`: the cost of a cluster under Joiner, and obstacles to a lower cost."""
