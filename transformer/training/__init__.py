"""Training: objectives, optimizer, loop and evaluation."""
