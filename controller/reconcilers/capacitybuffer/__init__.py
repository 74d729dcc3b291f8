"""Says of every CapacityBuffer for how many pods of which shape there must be room."""
