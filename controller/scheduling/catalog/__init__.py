"""What can be bought: offerings, the daemons on them, limits, and what of it pods tell apart."""
