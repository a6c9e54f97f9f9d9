"""Decoding: searches, scores, re-ranking and the translator."""
