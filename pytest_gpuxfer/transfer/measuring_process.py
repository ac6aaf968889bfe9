"""The program that measures for another process: python -m ...measuring_process DESCRIPTOR.

It is told which machine it should find, answers with the failure to find it or None, and then
answers each cell with its measurement, until the other side closes its end of the pipe.
"""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection

from pytest_gpuxfer.hardware.child import die_with_parent
from pytest_gpuxfer.model.machine import Machine
from pytest_gpuxfer.model.measurement import Failure, FailureKind
from pytest_gpuxfer.transfer.bench import Bench
from pytest_gpuxfer.transfer.isolation import MeasuringError
from pytest_gpuxfer.transfer.opening import open_machine


def _open(wanted: Machine) -> Bench | Failure:
    opened = open_machine(wanted.simulated, wanted.faults)
    if opened.hardware is None or opened.machine is None:
        assert opened.failure is not None
        return opened.failure
    if _gpus(opened.machine) != _gpus(wanted):
        return Failure(
            FailureKind.DRIVER_ERROR,
            f"this process finds {len(opened.machine.gpus)} GPUs that are not the"
            f" {len(wanted.gpus)} found before",
            "see `nvidia-smi -L` and `dmesg -T` for what became of them, run again",
        )
    return Bench(opened.hardware, wanted)


def _gpus(machine: Machine) -> list[tuple[int, str, str]]:
    return [(gpu.ordinal, gpu.uuid, gpu.pci_address) for gpu in machine.gpus]


def _serve(connection: Connection) -> None:
    bench = _open(connection.recv())
    if isinstance(bench, Failure):
        connection.send(bench)
        return
    connection.send(None)
    try:
        while True:
            connection.send(bench.measure(*connection.recv()))
    except EOFError:
        bench.close()


def main() -> None:
    """Serve until the other side is gone; a mistake of ours is told to it."""
    die_with_parent()
    with Connection(int(sys.argv[1])) as connection, suppress(EOFError, OSError):
        try:
            _serve(connection)
        except Exception:
            connection.send(MeasuringError(traceback.format_exc()))


if __name__ == "__main__":
    main()
