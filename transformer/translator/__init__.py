"""Trained models as decoders of records, and the Python API for translation."""
