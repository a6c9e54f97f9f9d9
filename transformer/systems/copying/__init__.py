"""Models that copy words of the source, also out-of-vocabulary ones, or only point to them."""
