"""Time and memory: the figures of docs/performance.md."""
