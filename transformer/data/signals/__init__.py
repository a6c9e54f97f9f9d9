"""Sound and pictures as arrays."""
