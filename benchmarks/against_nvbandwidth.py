"""Our copy-engine figures beside NVIDIA's nvbandwidth, on the same machine in the same run.

    python benchmarks/against_nvbandwidth.py PATH_OF_NVBANDWIDTH

Prints a row a cell: our median, nvbandwidth's, and the ratio, at its own buffer size of 512 MiB.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import permutations

from pytest_gpuxfer.hardware import open_hardware
from pytest_gpuxfer.hardware.discovery import discover
from pytest_gpuxfer.model.cell import Cell, Check, Initiator, Place
from pytest_gpuxfer.model.units import GB, MIB
from pytest_gpuxfer.transfer.bench import Bench

SIZE_BYTES = 512 * MIB
HOST = {
    "host_to_device_memcpy_ce": Check("host_to_device"),
    "device_to_host_memcpy_ce": Check("device_to_host"),
}
PEER = {
    "device_to_device_memcpy_write_ce": Check("unified_copy", initiator=Initiator.WRITE),
    "device_to_device_memcpy_read_ce": Check("unified_copy", initiator=Initiator.READ),
}


def theirs(program: str, names: list[str]) -> dict[str, list[list[str]]]:
    """Each test case's matrix of GB/s, as text, by its name."""
    command = [program, "-j", "-t", *names]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"{program} failed with {ran.returncode}: {ran.stderr or ran.stdout}")
    printed = ran.stdout
    cases = json.loads(printed[printed.index("{") :])["nvbandwidth"]["testcases"]
    return {case["name"]: case.get("bandwidth_matrix", []) for case in cases}


def cells(gpus: int) -> Iterator[tuple[str, Cell, tuple[int, int]]]:
    """nvbandwidth's case, our cell, and where its figure stands in the case's matrix."""
    for name, check in HOST.items():
        for gpu in range(gpus):
            yield name, Cell(check, Place.gpu(gpu), SIZE_BYTES), (0, gpu)
    for name, check in PEER.items():
        for source, destination in permutations(range(gpus), 2):
            cell = Cell(check, Place.pair(source, destination), SIZE_BYTES)
            # nvbandwidth's rows are the GPU that works: the source writes, the destination reads.
            working = (source, destination)
            yield name, cell, working if "write" in name else working[::-1]


def main(program: str) -> None:
    """Print the table."""
    hardware = open_hardware()
    machine = discover(hardware)
    bench = Bench(hardware, machine)
    wanted = list(HOST) + (list(PEER) if len(machine.gpus) > 1 else [])
    matrices = theirs(program, wanted)
    print(f"{'cell':<44} {'ours':>10} {'theirs':>10} {'ratio':>8}  GB/s, {SIZE_BYTES // MIB} MiB")
    for name, cell, (row, column) in cells(len(machine.gpus)):
        measured = bench.measure(cell)
        rates = measured.rates()
        if rates is None:
            print(f"{cell.id:<44} {measured.failure}")
            continue
        ours, reference = rates.median / GB, float(matrices[name][row][column])
        print(f"{cell.id:<44} {ours:>10.3f} {reference:>10.3f} {ours / reference:>8.4f}")
    bench.close()


if __name__ == "__main__":
    main(sys.argv[1])
