"""Tests on a real GPU: skipped where there is none, unless GPUXFER_REQUIRE_GPU=1 forbids that."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

from pytest_gpuxfer.hardware import HardwareError
from pytest_gpuxfer.hardware.cuda import open_driver
from pytest_gpuxfer.hardware.driver import Context, Driver, Stream

DEADLINE_S = 20.0
Wait = Callable[..., None]
Note = Callable[[str], None]
_NOTES = pytest.StashKey[list[str]]()


def _absent(reason: str) -> None:
    if os.environ.get("GPUXFER_REQUIRE_GPU") == "1":
        pytest.fail(f"GPUXFER_REQUIRE_GPU=1, and {reason}")
    pytest.skip(reason)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_NOTES] = []


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if notes := config.stash[_NOTES]:
        terminalreporter.section("what was seen")
        for line in notes:
            terminalreporter.line(line)


@pytest.fixture
def note(pytestconfig: pytest.Config) -> Note:
    """Keeps a line of figures for the run's end."""
    return pytestconfig.stash[_NOTES].append


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


@pytest.fixture
def wait(driver: Driver, stream: Stream) -> Wait:
    """Waits until the streams given, or `stream`, are idle."""

    def until_idle(*streams: Stream) -> None:
        deadline = time.monotonic() + DEADLINE_S
        for waited in streams or (stream,):
            while not driver.stream_idle(waited):
                assert time.monotonic() < deadline, "the stream did not end"
                time.sleep(0.0001)

    return until_idle


@pytest.fixture
def pair(driver: Driver) -> Iterator[tuple[Context, Context]]:
    if len(driver.devices()) < 2 or not driver.can_access_peer(0, 1):
        pytest.skip("no two GPUs that can use each other's memory")
    contexts = driver.retain_context(0), driver.retain_context(1)
    yield contexts
    for context in contexts:
        driver.release_context(context)
