"""A measuring process on a real GPU that is killed in mid-copy: what it costs and leaves."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from pytest_gpuxfer.hardware.driver import Context, Driver
from pytest_gpuxfer.model.cell import parse_cell
from pytest_gpuxfer.model.measurement import FailureKind
from pytest_gpuxfer.model.units import MIB
from pytest_gpuxfer.transfer.isolation import Isolated
from pytest_gpuxfer.transfer.opening import open_machine
from tests.gpu.conftest import DEADLINE_S
from tests.processes import measuring_children

CELL = parse_cell("host_to_device/gpu0/512MiB")


@pytest.mark.parametrize("after_s", [0.02, 0.1, 0.3])
def test_a_process_killed_in_mid_copy_costs_its_cell_and_holds_nothing(
    driver: Driver, context: Context, after_s: float
) -> None:
    machine = open_machine(None, ()).machine
    assert machine is not None
    free_before = driver.free_memory_bytes(context)
    isolated = Isolated(machine)
    assert isolated.measure(CELL).failure is None
    (child,) = measuring_children(os.getpid())

    killer = threading.Timer(after_s, os.kill, (child, signal.SIGKILL))
    killer.start()
    failure = None
    while failure is None:  # one cell may end before its process does
        failure = isolated.measure(CELL).failure
    killer.join()
    assert failure.kind is FailureKind.CRASH
    assert failure.message == "the measuring process was ended by SIGKILL"
    assert isolated.measure(CELL).failure is None

    isolated.close()
    assert measuring_children(os.getpid()) == []
    deadline = time.monotonic() + DEADLINE_S
    while driver.free_memory_bytes(context) < free_before - 64 * MIB:
        assert time.monotonic() < deadline, "memory of the killed process is still held"
        time.sleep(0.05)
