"""Comparisons of systems, methods and layers: the figures of docs/systems.md."""
