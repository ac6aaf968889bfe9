"""Pytest's own tester for everyone below."""

from __future__ import annotations

pytest_plugins = ("pytester",)
