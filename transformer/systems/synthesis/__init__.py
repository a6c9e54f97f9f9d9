"""Speech synthesis: a Transformer that writes frames of sound."""
