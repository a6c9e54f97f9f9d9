"""Tokenizers and vocabularies: trained, imported, and sampled segmentations."""
