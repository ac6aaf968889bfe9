from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_gpuxfer.hardware.driver import (
    AtomicAdd,
    ChaseChain,
    Comparison,
    Context,
    Driver,
    Fill,
    Handshake,
    HostKind,
    KernelCopy,
    Memory,
    Stream,
    WriteChain,
)
from pytest_gpuxfer.model.pattern import PERIOD_WORDS, POISON_WORD, Pattern
from tests.gpu.conftest import Wait

SIZE_BYTES = 3 * PERIOD_WORDS * 8 // 16 * 16 + 4096
PATTERN = Pattern(4242)
LINE_BYTES = 128


@pytest.fixture
def source(driver: Driver, context: Context) -> Iterator[Memory]:
    memory = driver.allocate_device(context, SIZE_BYTES)
    yield memory
    driver.free_device(context, memory)


@pytest.fixture
def destination(driver: Driver, context: Context) -> Iterator[Memory]:
    memory = driver.allocate_device(context, SIZE_BYTES)
    yield memory
    driver.free_device(context, memory)


@pytest.mark.parametrize("size_bytes", [16, 4096 - 16, 2**20 + 16, SIZE_BYTES])
@pytest.mark.parametrize("sharers", [1, 3, 1000])
def test_a_kernel_copies_all_of_it_and_nothing_more(
    driver: Driver, stream: Stream, source: Memory, destination: Memory, wait: Wait,
    size_bytes: int, sharers: int,
) -> None:  # fmt: skip
    driver.launch(Fill(source, PATTERN), stream)
    driver.launch(Fill(destination, POISON_WORD), stream)
    piece = destination.window(0, size_bytes)
    driver.launch(KernelCopy(piece, source.window(0, size_bytes), sharers), stream)
    wait()
    assert driver.compare(piece, PATTERN) == Comparison(0)
    rest = destination.window(size_bytes, SIZE_BYTES - size_bytes)
    words = driver.read_words(rest, rest.size_bytes // 8)
    assert set(words) <= {POISON_WORD}


def test_a_copy_that_does_not_fit_or_has_half_a_load_is_refused(
    driver: Driver, stream: Stream, source: Memory, destination: Memory
) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        driver.launch(KernelCopy(destination.window(0, 16), source), stream)
    with pytest.raises(ValueError, match="no multiple of 16"):
        driver.launch(KernelCopy(destination, source.window(0, 24)), stream)


@pytest.mark.parametrize("kind", [HostKind.PINNED, HostKind.REGISTERED, HostKind.SHARED])
def test_a_kernel_reads_and_writes_host_memory(
    driver: Driver, context: Context, stream: Stream, destination: Memory, wait: Wait,
    kind: HostKind,
) -> None:  # fmt: skip
    host = driver.allocate_host(context, SIZE_BYTES, kind)
    driver.fill_host(host, PATTERN)
    driver.launch(KernelCopy(destination, host), stream)
    wait()
    assert driver.compare(destination, PATTERN) == Comparison(0)
    driver.launch(Fill(destination, Pattern(5)), stream)
    driver.launch(KernelCopy(host, destination), stream)
    wait()
    assert driver.compare(host, Pattern(5)) == Comparison(0)
    driver.free_host(context, host)


@pytest.mark.parametrize("lines", [1, 2, 1000, 4097])
def test_a_chain_is_one_ring_through_every_line(
    driver: Driver, stream: Stream, destination: Memory, wait: Wait, lines: int
) -> None:
    ring = destination.window(0, lines * LINE_BYTES)
    driver.launch(Fill(destination, POISON_WORD), stream)
    driver.launch(WriteChain(ring), stream)
    wait()
    words = driver.read_words(ring, lines * LINE_BYTES // 8)
    offset, seen = 0, set()
    for _ in range(lines):
        seen.add(offset)
        offset = words[offset // 8]
    assert (offset, len(seen)) == (0, lines)
    assert all(word == POISON_WORD for at, word in enumerate(words) if at % 16)


def test_a_chase_goes_as_far_as_it_is_told(
    driver: Driver, stream: Stream, source: Memory, destination: Memory, wait: Wait
) -> None:
    ring = source.window(0, 1000 * LINE_BYTES)
    driver.launch(WriteChain(ring), stream)
    ends: list[int] = []
    for hops in (0, 1, 2, 3, 999, 1000, 2001):
        driver.launch(ChaseChain(ring, hops, destination), stream)
        wait()
        ends += driver.read_words(destination, 1)
    first = driver.read_words(ring, 1)[0]
    second = driver.read_words(ring.window(first, 8), 1)[0]
    third = driver.read_words(ring.window(second, 8), 1)[0]
    assert ends[:4] == [0, first, second, third]
    assert driver.read_words(ring.window(ends[4], 8), 1) == (0,), "the last line leads back"
    assert ends[5:] == [0, first]


def test_every_hop_of_a_chase_goes_to_memory(
    driver: Driver, context: Context, stream: Stream, source: Memory, destination: Memory,
    wait: Wait,
) -> None:  # fmt: skip
    """Loads that L1 answered would take a tenth of it."""
    driver.launch(WriteChain(destination), stream)
    start, end = driver.create_event(context), driver.create_event(context)
    driver.record_event(start, stream)
    driver.launch(ChaseChain(destination, 100_000, source), stream)
    driver.record_event(end, stream)
    wait()
    assert driver.elapsed_ns(start, end) / 100_000 > 100
    driver.destroy_event(start)
    driver.destroy_event(end)


def test_two_kernels_answer_each_other(
    driver: Driver, context: Context, stream: Stream, source: Memory, destination: Memory,
    wait: Wait,
) -> None:  # fmt: skip
    other = driver.create_stream(context)
    a, b, rounds, limit_ns = source.window(0, 128), destination.window(0, 128), 1000, 5 * 10**9
    driver.launch(Fill(a, 0), stream)
    driver.launch(Fill(b, 0), stream)
    wait()
    driver.launch(Handshake(a, b, rounds, True, limit_ns), stream)
    driver.launch(Handshake(b, a, rounds, False, limit_ns), other)
    wait(stream, other)
    assert driver.read_words(a, 2) == (rounds, rounds)
    assert driver.read_words(b, 2) == (rounds, rounds)
    driver.destroy_stream(other)


def test_a_handshake_without_an_answer_ends_by_its_limit(
    driver: Driver, stream: Stream, source: Memory, destination: Memory, wait: Wait
) -> None:
    a, b = source.window(0, 128), destination.window(0, 128)
    driver.launch(Fill(a, 0), stream)
    driver.launch(Fill(b, 0), stream)
    driver.launch(Handshake(a, b, 10, True, 1_000_000), stream)
    wait()
    assert driver.read_words(a, 2) == (0, 0)
    assert driver.read_words(b, 1) == (1,), "the first flag was raised"


def test_no_addition_is_lost(
    driver: Driver, stream: Stream, destination: Memory, wait: Wait
) -> None:
    driver.launch(Fill(destination, 7), stream)
    driver.launch(AtomicAdd(destination, 1_000_003), stream)
    wait()
    assert driver.read_words(destination, 2) == (1_000_010, 7)
