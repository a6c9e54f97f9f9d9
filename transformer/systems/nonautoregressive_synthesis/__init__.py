"""Speech synthesis with all frames in one pass."""
