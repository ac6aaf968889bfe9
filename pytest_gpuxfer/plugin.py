"""Pytest's entry."""
