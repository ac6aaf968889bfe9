"""Tests on a real GPU: skipped where there is none, unless GPUXFER_REQUIRE_GPU=1 forbids that."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pytest_gpuxfer.hardware import HardwareError
from pytest_gpuxfer.hardware.cuda import open_driver
from pytest_gpuxfer.hardware.driver import Context, Driver, Stream


def _absent(reason: str) -> None:
    if os.environ.get("GPUXFER_REQUIRE_GPU") == "1":
        pytest.fail(f"GPUXFER_REQUIRE_GPU=1, and {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def driver() -> Driver:
    try:
        driver = open_driver()
    except HardwareError as error:
        _absent(error.message)
        raise
    if not driver.devices():
        _absent("the driver lists no GPU")
    return driver


@pytest.fixture(scope="session")
def context(driver: Driver) -> Iterator[Context]:
    context = driver.retain_context(0)
    yield context
    driver.release_context(context)


@pytest.fixture
def stream(driver: Driver, context: Context) -> Iterator[Stream]:
    stream = driver.create_stream(context)
    yield stream
    driver.destroy_stream(stream)
