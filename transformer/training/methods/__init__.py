"""Training methods: additions to the objective of a system."""
