"""The encoder-decoder Transformer, and what other systems start from."""
