"""Our figures beside nvbandwidth's, all 35 of its test cases, on the same machine in the same run.

    python benchmarks/against_nvbandwidth.py PATH_OF_NVBANDWIDTH [CASE ...]

Prints a row a case and place: our cell, our median, nvbandwidth's, the ratio. Its bidirectional
figures are those of one direction under load (ours: that flow), its all-to-one ones are totals.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations

from pytest_gpuxfer.hardware import open_hardware
from pytest_gpuxfer.hardware.discovery import discover
from pytest_gpuxfer.model.cell import Cell, parse_cell
from pytest_gpuxfer.model.measurement import Measurement
from pytest_gpuxfer.model.units import GB
from pytest_gpuxfer.transfer.bench import Bench

Figure = Callable[[Measurement], float]
SIZE = "512MiB"  # as theirs
HOST_SIZE = "256MiB"  # to 0.2% the same, and half the time for the host's memory


@dataclass(frozen=True)
class Pairing:
    """A case of theirs, our cell, where its figure stands in their matrix, and which of ours."""

    case: str
    cell: str
    row: int
    column: int
    figure: Figure


def rate(measured: Measurement) -> float:
    rates = measured.rates()
    assert rates is not None
    return rates.median / GB


def total(measured: Measurement) -> float:
    totals = measured.totals()
    assert totals is not None
    return totals.median / GB


def latency(measured: Measurement) -> float:
    latencies = measured.latencies()
    assert latencies is not None
    return latencies.median


def flow(name: str) -> Figure:
    """The rate of one flow of several."""

    def figure(measured: Measurement) -> float:
        return measured.flow_rates()[measured.flows.index(name)].median / GB

    return figure


def one_gpu(gpu: int) -> Iterator[Pairing]:
    here, into, out = f"gpu{gpu}", f"host-gpu{gpu}", f"gpu{gpu}-host"
    for engine, up, down in (
        ("ce", "host_to_device", "device_to_host"),
        ("sm", "zero_copy.sm.read", "zero_copy.sm.write"),
    ):
        both = f"{up}.bidirectional/{here}/{HOST_SIZE}"
        cases = (
            ("host_to_device_memcpy", f"{up}/{here}/{HOST_SIZE}", rate),
            ("device_to_host_memcpy", f"{down}/{here}/{HOST_SIZE}", rate),
            ("host_to_device_bidirectional_memcpy", both, flow(into)),
            ("device_to_host_bidirectional_memcpy", both, flow(out)),
            ("all_to_host_memcpy", f"{down}.all-to-host/all/{HOST_SIZE}", flow(out)),
            ("host_to_all_memcpy", f"{up}.host-to-all/all/{HOST_SIZE}", flow(into)),
            ("all_to_host_bidirectional_memcpy", f"{up}.host-and-all/all/{HOST_SIZE}", flow(out)),
            ("host_to_all_bidirectional_memcpy", f"{up}.host-and-all/all/{HOST_SIZE}", flow(into)),
        )
        for case, cell, figure in cases:
            yield Pairing(f"{case}_{engine}", cell, 0, gpu, figure)
    yield Pairing("host_device_latency_sm", f"load_latency.sm.mapped/{here}/2MiB", 0, gpu, latency)
    yield Pairing("device_local_copy", f"local_copy/{here}/{SIZE}", 0, gpu, rate)


def many_gpus(gpus: int) -> Iterator[Pairing]:
    for source, destination in permutations(range(gpus), 2):
        place, low = f"gpu{source}-gpu{destination}", min(source, destination)
        row, column = source, destination
        for engine, method in (("ce", "unified_copy"), ("sm", "kernel_copy.sm")):
            for way in ("read", "write"):
                case = f"device_to_device_memcpy_{way}_{engine}"
                yield Pairing(case, f"{method}.{way}/{place}/{SIZE}", row, column, rate)
                if source == low:
                    case = f"device_to_device_bidirectional_memcpy_{way}_{engine}"
                    cell = f"{method}.{way}.bidirectional/{place}/{SIZE}"
                    yield Pairing(case, cell, 2 * gpus + row, column, total)
        yield Pairing(
            "device_to_device_latency_sm", f"load_latency.sm/{place}/2MiB", row, column, latency
        )
    for gpu in range(gpus):
        for engine, method in (("ce", "unified_copy"), ("sm", "kernel_copy.sm")):
            for way in ("write", "read"):
                # Their "all to one" of reads is all pulling from one: our one-to-all, pulled.
                forth, back = ("all-to-one", "one-to-all")[:: 1 if way == "write" else -1]
                for case, pattern in (("all_to_one", forth), ("one_to_all", back)):
                    cell = f"{method}.{way}.{pattern}/gpu{gpu}/{SIZE}"
                    yield Pairing(f"{case}_{way}_{engine}", cell, 0, gpu, total)


def theirs(program: str, cases: list[str]) -> tuple[dict[str, list[list[str]]], float]:
    """Each case's matrix of figures, as text, by its name; and the seconds it all took."""
    before = time.monotonic()
    ran = subprocess.run([program, "-j", "-t", *cases], capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"{program} failed with {ran.returncode}: {ran.stderr or ran.stdout}")
    found = json.loads(ran.stdout[ran.stdout.index("{") :])["nvbandwidth"]["testcases"]
    matrices = {case["name"]: case.get("bandwidth_matrix", []) for case in found}
    return matrices, time.monotonic() - before


def main(program: str, wanted: list[str]) -> None:
    """Print the table."""
    hardware = open_hardware()
    machine = discover(hardware)
    bench = Bench(hardware, machine)
    gpus = len(machine.gpus)
    pairings = [pairing for gpu in range(gpus) for pairing in one_gpu(gpu)]
    pairings += many_gpus(gpus) if gpus > 1 else ()
    if gpus == 1:  # flows of all GPUs are one flow then, and no flow of several
        pairings = [p for p in pairings if "-to-all/" not in p.cell and "all-to-" not in p.cell]
    if wanted:
        pairings = [pairing for pairing in pairings if pairing.case in wanted]
    matrices, their_s = theirs(program, sorted({pairing.case for pairing in pairings}))
    measured: dict[Cell, Measurement] = {}
    before = time.monotonic()
    print(f"{'nvbandwidth':<42} {'ours':<52} {'ours':>9} {'theirs':>9} ratio  GB/s or ns")
    for pairing in sorted(pairings, key=lambda pairing: pairing.case):
        cell = parse_cell(pairing.cell)
        if cell not in measured:
            measured[cell] = bench.measure(cell)
        if not measured[cell].samples:
            print(f"{pairing.case:<42} {pairing.cell:<52} {measured[cell].failure}")
            continue
        ours = pairing.figure(measured[cell])
        reference = float(matrices[pairing.case][pairing.row][pairing.column])
        print(
            f"{pairing.case:<42} {pairing.cell:<52} {ours:>9.2f} {reference:>9.2f}"
            f" {ours / reference:.4f}"
        )
    print(f"{their_s:.1f} s for nvbandwidth, {time.monotonic() - before:.1f} s for us")
    bench.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
