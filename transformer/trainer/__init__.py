"""Training runs: checks, the loop, evaluation, progress, signals."""
