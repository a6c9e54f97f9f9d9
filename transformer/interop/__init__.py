"""Imports Marian models for decoding and fine-tuning, and exports models.

python -m transformer.interop import opus-mt-en-de runs/opus-en-de
python -m transformer.interop export runs/transformer-1 exported
"""
