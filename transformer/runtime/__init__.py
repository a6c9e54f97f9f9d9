"""Devices, processes, and the compilation cache."""
