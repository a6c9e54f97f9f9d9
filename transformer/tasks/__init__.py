"""Tasks: what goes in and out of a system, as records, batches and scores."""
