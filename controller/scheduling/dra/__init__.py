"""Dynamic resource allocation (DRA): devices, and the claims that they are allocated to."""
