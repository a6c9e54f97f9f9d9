"""Run directories: configuration, checkpoints, metrics, reports."""
