"""A program whose parts import one another by their full names, as the bundle's do."""
