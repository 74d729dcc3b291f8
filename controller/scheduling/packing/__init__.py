"""The cheapest nodes for what is left, and what no answer costs less than."""
