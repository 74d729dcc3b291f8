"""The gate: compare what Joiner answers now with what it answered at an earlier commit."""
