"""Language models: a decoder-only Transformer, with a memory of earlier segments (Transformer-XL)."""
