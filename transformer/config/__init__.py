"""Configuration: the options that systems share, their types and limits. Imports nothing above."""
