"""What of the suites a run collects."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The self-test stands apart: without its option it is no part of any run."""
    selftest = collection_path == Path(__file__).with_name("test_selftest.py")
    return True if selftest and not config.getoption("gpuxfer_selftest") else None
