"""Imports Marian models for decoding and fine-tuning, and exports models.

python -m transformer import opus-mt-en-de runs/opus-en-de
python -m transformer export runs/transformer-1 exported
"""
