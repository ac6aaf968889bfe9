"""Proves which way bytes travel between GPUs, and how fast. Imports nothing heavy."""

__version__ = "0.1.0"
