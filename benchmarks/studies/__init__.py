"""Comparisons of systems, methods and layers: the figures of docs/systems-compared.md."""
