"""The text API, and what is built on it."""
