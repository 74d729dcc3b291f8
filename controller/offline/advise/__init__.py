"""The command `advise`: what a cluster would cost under Joiner, and what prevents it."""
