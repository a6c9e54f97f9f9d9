"""Masked language models (BERT, Devlin et al. 2019): an encoder that predicts the tokens hidden from it."""
