"""Run directories: configuration, checkpoints, logs, and copies of them elsewhere."""
