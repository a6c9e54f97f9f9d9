"""Tagging: an encoder that predicts a label for each word."""
