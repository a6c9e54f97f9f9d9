"""Recurrent encoder-decoders, with soft, hard or no attention."""
