"""Training runs: loop, evaluation, progress, signals."""
