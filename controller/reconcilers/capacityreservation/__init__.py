"""What becomes of nodes whose capacity reservation ends, or that EC2 has taken out of theirs."""
