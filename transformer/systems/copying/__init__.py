"""Pointer-generator models, which can copy out-of-vocabulary words from the source."""
