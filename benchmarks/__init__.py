"""Measurements that anyone can repeat. `python -m benchmarks` lists the commands."""
