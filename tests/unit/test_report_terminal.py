"""What is read at three in the morning, word for word."""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent

from pytest_gpuxfer.model.measurement import (
    Corruption,
    Failure,
    FailureKind,
    Health,
    Integrity,
    Mismatch,
    PathKind,
)
from pytest_gpuxfer.model.unknown import Unknown
from pytest_gpuxfer.report.failure import WIDTH, failure_lines
from pytest_gpuxfer.report.records import CellLine, End, Record
from pytest_gpuxfer.report.terminal import header_lines, summary_lines
from tests.unit.report_cases import CONTROL, MACHINE, PROFILE, copy, counts, gpus_seen, header


def text(block: str) -> list[str]:
    return dedent(block).strip("\n").splitlines()


def record(*cells: CellLine, exit_status: int = 1) -> Record:
    end = End(exit_status, counts(*cells), 4, len(cells), len(cells))
    return Record(header(), cells, end)


def test_header() -> None:
    assert header_lines(header()) == text(
        """
        host node.one: 2 x GPU T, NV4, PCIe Gen4 x16, driver 580.1, CUDA 13.0
        profile two: Two GPUs (thresholds/two.yaml)
        """
    )


def test_header_of_a_simulated_part_of_a_machine() -> None:
    simulated = replace(MACHINE, simulated="toy", faults=("link-down:gpu0",))
    partial = replace(PROFILE, partial="2 of 8 GPUs, as declared")
    lines = header_lines(header(simulated, partial))
    assert lines[0] == "SIMULATED machine toy, faults: link-down:gpu0"
    assert lines[-1] == "PARTIAL: 2 of 8 GPUs, as declared"


def test_header_tells_mixed_wiring() -> None:
    third = replace(MACHINE.gpus[0], index=2, nvlinks=())
    mixed = replace(MACHINE, gpus=(*MACHINE.gpus, third))
    words = " ".join(header_lines(header(mixed)))
    assert "unknown (PCI ancestor not read) (2 pairs), NV4 (1 pair)" in words


def test_block_of_a_copy_that_took_the_wrong_path() -> None:
    busy = Health(concerns=("gpu1 throttled: hardware thermal slowdown",))
    line = copy(0, 1, 20e9, PathKind.STAGED, health=busy)
    assert failure_lines(line) == text(
        """
        FAIL peer_copy.write/gpu0-gpu1/64MiB: the bytes took staged, the profile asks for nvlink
          measured    20.00 GB/s, from 20.00 GB/s to 20.00 GB/s, 7 samples behind a gate
          floor       80.00 GB/s (80% of nvlink), thresholds/two.yaml:21
          expected    90.00 GB/s, thresholds/two.yaml:22, tolerance 5%
          source      published: the maker's data sheet, 2026-07
          path        staged; the profile asks for nvlink
          counters    the counters' words
          access      gpu0 to memory of gpu1: enabled, kernel access not tried
          access      gpu1 to memory of gpu0: enabled, kernel access not tried
          meanwhile   gpu1 throttled: hardware thermal slowdown
          cause       the driver does not use NVLink although peer access is enabled
          next        check the fabric state in `nvidia-smi -q`, nvidia-fabricmanager's log, and
                      confidential computing
        """
    )


def test_block_of_wrong_data_shows_no_rate() -> None:
    wrong = Mismatch(1, 64, 64, 1, 3, Corruption.FLIPPED_BIT)
    block = failure_lines(copy(0, 1, 88e9, integrity=Integrity(64, wrong)))
    assert block[0].startswith("FAIL peer_copy.write/gpu0-gpu1/64MiB: wrong data, its rate is void")
    assert not any("measured" in line for line in block)


def test_block_of_what_could_not_be_measured_says_what_to_do() -> None:
    failure = Failure(FailureKind.HANG, "gpu1 did not answer in 10 s", "look for Xid")
    block = failure_lines(copy(0, 1, 88e9, samples=(), failure=failure))
    assert block[0] == "ERROR peer_copy.write/gpu0-gpu1/64MiB: hang: gpu1 did not answer in 10 s"
    assert "  do          look for Xid" in block
    assert "  asked by    thresholds/two.yaml:12" in block


def test_summary() -> None:
    unread = Unknown("not supported")
    cells = (
        gpus_seen("GPU T", "GPU T"),
        copy(0, 1, 15e9, PathKind.STAGED, CONTROL),
        copy(0, 1, 20e9, PathKind.STAGED),
        copy(1, 0, 88e9, unread),
    )
    assert summary_lines(record(*cells)) == text(
        """
        machine.gpus        1 pass
        peer_copy.write.no-access 64 MiB: 1 pass, 15.00 GB/s

        peer_copy.write 64 MiB, GB/s, source down, destination across
                  gpu0    gpu1
        gpu0             *20.0
        gpu1     ?88.0
        * fail, ? inconclusive, . not run

        Not checked:
          rate: nobody promises it [peer_copy.write.no-access/gpu0-gpu1/64MiB]
          traffic between nodes (RDMA), collectives (NCCL), GPU memory, compute
        2 pass, 1 fail, 1 inconclusive
        """
    )


def test_partial_and_unjudged_are_said() -> None:
    end = End(6, {}, expected=4, selected=3, judged=1)
    lines = summary_lines(Record(header(), (copy(0, 1, 88e9),), end))
    assert "PARTIAL 3 of 4 cells were selected: no acceptance of the machine" in lines
    assert "NOT JUDGED 2 of the selected cells" in lines


def test_missing_gpu_is_counted_and_placed() -> None:
    lines = summary_lines(record(gpus_seen("GPU T")))
    assert lines[0] == "machine.gpus        1 absent: all"


def test_nothing_judged_is_said() -> None:
    assert summary_lines(record())[-1] == "nothing was judged"


def test_everything_fits_the_width() -> None:
    cells = (copy(0, 1, 20e9, PathKind.STAGED), copy(1, 0, 88e9, Unknown("a long reason " * 20)))
    blocks = [line for cell in cells for line in failure_lines(cell)]
    lines = [*blocks, *summary_lines(record(*cells))]
    assert max(map(len, lines)) <= WIDTH
