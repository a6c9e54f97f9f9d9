"""The contract of systems, their registry and their presets. Each folder is a system."""
