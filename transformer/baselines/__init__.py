"""Baselines: recurrent and convolutional sequence-to-sequence models."""
