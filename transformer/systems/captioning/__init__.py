"""Captioning: pictures in, descriptions out."""
