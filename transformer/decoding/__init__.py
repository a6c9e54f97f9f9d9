"""The search: slots, steps, and how each strategy chooses among the next tokens."""
