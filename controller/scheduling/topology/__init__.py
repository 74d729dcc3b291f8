"""Rules about where pods lie with respect to one another, and what they count."""
