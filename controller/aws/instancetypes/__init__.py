"""Instance types: their capacity, their requirements, their offerings and their prices."""
