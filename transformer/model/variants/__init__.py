"""What the paper does not have: other attention mechanisms, recurrences and inputs, and CTC."""
