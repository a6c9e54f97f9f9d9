"""Searches as a service: a queue of requests, and lanes of slots on every device."""
