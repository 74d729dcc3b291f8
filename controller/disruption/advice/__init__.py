"""Forecasts the cost of a cluster under Joiner, and the obstacles to a lower cost."""
