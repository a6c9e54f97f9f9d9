"""From examples to batches: stores, sequences, and plans of what comes when."""
