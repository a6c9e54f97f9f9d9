"""Scores: of texts, labels, trees, boxes and sounds, each as a reference program computes it."""
