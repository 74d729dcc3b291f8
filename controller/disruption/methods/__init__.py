"""The disruption methods, and the order in which they are tried."""
