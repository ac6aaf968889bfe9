"""What is read at three in the morning, word for word."""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent

from pytest_gpuxfer.model.cell import Cell, Check, Initiator, Place, parse_check
from pytest_gpuxfer.model.expectation import Bound, Expectation, Limit, Source, SourceKind
from pytest_gpuxfer.model.measurement import (
    Corruption,
    Failure,
    FailureKind,
    Health,
    Integrity,
    Measurement,
    Mismatch,
    PathKind,
    Sample,
)
from pytest_gpuxfer.model.unknown import Unknown
from pytest_gpuxfer.report.failure import WIDTH, failure_lines
from pytest_gpuxfer.report.records import CellLine, End, Record
from pytest_gpuxfer.report.terminal import (
    header_lines,
    summary_lines,
)
from tests.unit.report_cases import (
    CONTROL,
    CONTROL_LIMIT,
    LIMIT,
    MACHINE,
    MIB,
    PROFILE,
    WRITE,
    at,
    copy,
    counts,
    gpus_seen,
    header,
    judged,
)


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


BOTH_WAYS = replace(WRITE, pattern="bidirectional")
PULLED = replace(WRITE, initiator=Initiator.READ, memory="pool")


def test_what_is_well_is_one_line_a_check() -> None:
    cells = [copy(a, b, rate, check=PULLED) for a, b, rate in ((0, 1, 88e9), (1, 0, 90e9))]
    assert summary_lines(record(*cells))[0] == (
        "peer_copy.read.pool 64 MiB: 2 pass, 88.00 to 90.00 GB/s"
    )


def test_copies_that_the_driver_refused_are_said_to_be_so() -> None:
    unmapped = replace(CONTROL, memory="pool")
    line = copy(0, 1, 1e9, check=unmapped, samples=(), signals=(), refusal="CUDA_ERROR_T (1)")
    assert summary_lines(record(line))[0] == (
        "peer_copy.write.pool.no-access 64 MiB: 1 pass, refused"
    )


def test_one_red_cell_brings_the_matrix_of_its_check() -> None:
    cells = [copy(a, b, rate, check=PULLED) for a, b, rate in ((0, 1, 20e9), (1, 0, 90e9))]
    assert summary_lines(record(*cells))[1:5] == text(
        """
        peer_copy.read.pool 64 MiB, GB/s, source down, destination across
                  gpu0    gpu1
        gpu0             *20.0
        gpu1      90.0
        """
    )


def test_both_directions_are_told_apart_and_summed() -> None:
    """The first flow took 0.74 ms for its 64 MiB, the second 0.76 ms."""
    sample = Sample(0.76e6, 128 * MIB, 1, flows_ns=(0.74e6, 0.76e6))
    line = copy(
        0, 1, 88e9, check=BOTH_WAYS, samples=(sample,) * 7, flows=("gpu0-gpu1", "gpu1-gpu0")
    )
    (first, *_) = summary_lines(record(line))
    forth_back_sum = "forth 90.69 GB/s, back 88.30 GB/s, sum 176.6 GB/s"
    assert first == f"peer_copy.write.bidirectional 64 MiB: 1 pass, {forth_back_sum}"


def test_of_many_flows_the_slowest_and_the_total_are_told_and_where_it_is_red() -> None:
    def shifted(shift: int, slowest_ns: float) -> CellLine:
        cell = Cell(replace(WRITE, pattern="ring"), Place((), f"ring-{shift}"), 64 * MIB)
        sample = Sample(slowest_ns, 256 * MIB, 1, flows_ns=(slowest_ns, *[0.7e6] * 3))
        flows = tuple(f"gpu{gpu}-gpu{(gpu + shift) % 4}" for gpu in range(4))
        integrity = Integrity(MIB)
        measured = Measurement(cell, samples=(sample,) * 7, flows=flows, integrity=integrity)
        return judged(Expectation(cell, limit=LIMIT, tolerance=0.05), measured)

    lines = summary_lines(record(shifted(1, 0.75e6), shifted(2, 2e6)))
    words = "the slowest flow 33.55 to 89.48 GB/s, total 134.2 to 357.9 GB/s: ring-2 *33.6"
    told = " ".join(line.strip() for line in lines[:2])
    assert told == f"peer_copy.write.ring 64 MiB: 1 pass, 1 fail, {words}"


def test_times_are_told_as_times() -> None:
    cell = Cell(Check("small_copy_latency"), Place.pair(0, 1), 16)
    ceiling = Limit(cell.check, at(40), ceiling=Bound(6_000, "6 us", at(41)))
    samples = (Sample(225_000, 1600, 100),) * 7
    measured = Measurement(cell, samples=samples, integrity=Integrity(16))
    line = judged(Expectation(cell, limit=ceiling), measured)
    assert summary_lines(record(line))[0] == "small_copy_latency 16 B: 1 pass, 2.25 us"
    slow = replace(measured, samples=(Sample(1_530_000, 1600, 100),) * 7)
    red = judged(Expectation(cell, limit=ceiling), slow)
    assert summary_lines(record(red))[1] == (
        "small_copy_latency 16 B, us, source down, destination across"
    )
    assert failure_lines(red)[1].split(maxsplit=1) == [
        "measured", "15.30 us, from 15.30 us to 15.30 us, 7 samples without a gate"
    ]  # fmt: skip


def swept(check: Check, startup_ns: float, *sizes: int) -> list[CellLine]:
    """Cells of 100 GB/s after a start-up time."""
    lines = []
    for size in sizes:
        cell = Cell(check, Place.pair(0, 1), size)
        samples = (Sample(startup_ns + size / 100, size, 1),) * 7
        measured = Measurement(cell, samples=samples, integrity=Integrity(size))
        limit = replace(CONTROL_LIMIT, check=check)
        lines.append(judged(Expectation(cell, limit=limit), measured))
    return lines


def test_sizes_of_one_pair_are_a_table_with_what_fits_them() -> None:
    lines = summary_lines(record(*swept(PULLED, 3_000, MIB // 1024, MIB, 64 * MIB)))
    assert lines[0] == "peer_copy.read.pool 64 MiB: 1 pass, 99.55 GB/s"
    assert lines[2:5] == text(
        """
        gpu0-gpu1, GB/s by size; start-up time and rate at most, fitted to all sizes
                                1KiB   1MiB  64MiB  start-up at most
        peer_copy.read.pool     0.34   77.8   99.6   3.00 us   100.0
        """
    )


def test_the_four_ways_stand_beside_what_is_published_on_that_machine_alone() -> None:
    ways = [
        line
        for name, startup_ns in (("peer_copy.write.round-trip", 0), ("zero_copy.sm", 1e6))
        for line in swept(parse_check(name), startup_ns, 128 * MIB)
    ]
    here = summary_lines(record(*ways))
    assert "  peer to peer        peer_copy.write.round-trip    100.0 GB/s" in here
    a100 = replace(MACHINE, gpus=tuple(replace(g, name="NVIDIA A100-X") for g in MACHINE.gpus))
    beside = summary_lines(Record(header(a100), tuple(ways)))
    row = "  mapped host memory  zero_copy.sm                  57.30 GB/s     2.90 GB/s"
    assert row in beside
    assert any("loads that are not coalesced" in line for line in beside)


def test_provisional_limits_are_listed_by_file() -> None:
    source = Source(SourceKind.DERIVED, "by hand", provisional=True)
    lines = []
    for number in (20, 30):
        line = copy(0, 1, 88e9)
        limit = replace(LIMIT, source=source, location=at(number))
        lines.append(
            CellLine(f"{number}", None, replace(line.expectation, limit=limit), line.verdict)
        )
    words = "  provisional limits, not yet confirmed: thresholds/two.yaml:20, 30"
    assert words in summary_lines(record(*lines))


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
