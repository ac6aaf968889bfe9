"""Proves which way bytes travel between GPUs, and how fast. Imports nothing heavy.

PYTEST_DONT_REWRITE: nothing here asserts, and pytest inside pytest, which finds an editable install
imported already, would warn.
"""

__version__ = "0.1.0"
