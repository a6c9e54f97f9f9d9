"""The network, in the paper's order: attention, layers, transformer."""
