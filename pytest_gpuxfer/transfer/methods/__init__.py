"""The ways to move bytes, one class each."""
