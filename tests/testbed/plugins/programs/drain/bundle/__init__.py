"""A program whose modules import each other by full name, as the stack's program does."""
