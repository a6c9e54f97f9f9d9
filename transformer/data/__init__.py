"""From text to batches of ids."""
