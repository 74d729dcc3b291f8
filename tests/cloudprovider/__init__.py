"""The port to a cloud, and the small cloud in memory that keeps its protocol."""
