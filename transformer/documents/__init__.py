"""Whole documents: their sentences are translated, and what is around them stays as it is."""
