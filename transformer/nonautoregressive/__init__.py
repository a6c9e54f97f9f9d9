"""Decoders that say all words at once: by predicted length, from 300 <bos>, by fertilities, by masks."""
