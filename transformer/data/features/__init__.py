"""Features of text: tokenizers and vocabularies."""
