"""Speech recognition: a Transformer that reads frames of sound."""
