"""The contracts of tasks: what goes in and out of a system, as records, batches and scores."""
