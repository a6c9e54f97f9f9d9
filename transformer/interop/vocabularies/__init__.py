"""How families of pretrained models store their tokenizers."""
