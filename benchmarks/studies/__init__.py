"""Comparisons of systems, methods and layers: figures of the pages of results in docs/."""
