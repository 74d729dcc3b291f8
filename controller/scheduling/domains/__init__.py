"""Which zones, nodes and other domains pods go to: spreads, affinities, and what can be opened."""
