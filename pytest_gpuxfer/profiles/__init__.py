"""Reads and checks profiles: YAML to expectation."""
