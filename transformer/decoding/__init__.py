"""From parameters back to text."""
