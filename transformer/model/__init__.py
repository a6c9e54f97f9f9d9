"""The network, in the order of the paper: attention, layers, stacks, transformer."""
