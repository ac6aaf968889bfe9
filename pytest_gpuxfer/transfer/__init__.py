"""Moves bytes and times it, written once against the hardware Protocols."""
