from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_gpuxfer.hardware.driver import (
    AtomicAdd,
    ChaseChain,
    Comparison,
    Context,
    DeviceKind,
    Driver,
    Fill,
    Handshake,
    KernelCopy,
    Stream,
    WriteChain,
)
from pytest_gpuxfer.model.measurement import Access
from pytest_gpuxfer.model.pattern import PERIOD_WORDS, POISON_WORD, Pattern
from tests.gpu.conftest import Wait

SIZE_BYTES = 3 * PERIOD_WORDS * 8 // 16 * 16 + 4096
PATTERN = Pattern(321)
Pair = tuple[Context, Context]


@pytest.fixture
def mapped(driver: Driver, pair: Pair) -> Iterator[Pair]:
    """Both GPUs may use each other's malloc memory."""
    here, there = pair
    assert driver.enable_peer_access(here, there) is Access.ENABLED
    assert driver.enable_peer_access(there, here) is Access.ENABLED
    yield pair
    driver.disable_peer_access(here, there)
    driver.disable_peer_access(there, here)


@pytest.mark.parametrize("kind", [DeviceKind.POOL, DeviceKind.VMM])
def test_access_is_granted_to_memory_by_itself(
    driver: Driver, pair: Pair, stream: Stream, wait: Wait, kind: DeviceKind
) -> None:
    """With the contexts' peer access off, which it does not need; and revoked, copies still go."""
    here, there = pair
    remote = driver.allocate_device(there, SIZE_BYTES, kind)
    local = driver.allocate_device(here, SIZE_BYTES, kind)
    driver.grant_access(remote, here)
    driver.launch(Fill(remote, PATTERN), stream)
    wait()
    assert driver.compare(remote, PATTERN) == Comparison(0)
    driver.launch(KernelCopy(local, remote), stream)
    wait()
    assert driver.compare(local, PATTERN) == Comparison(0)

    driver.revoke_access(remote, here)
    driver.launch(Fill(local, Pattern(3)), stream)
    driver.copy_peer(remote, local, stream)
    wait()
    assert driver.compare(remote, Pattern(3)) == Comparison(0)
    driver.free_device(there, remote)
    driver.free_device(here, local)


def test_a_kernel_copies_both_ways(
    driver: Driver, mapped: Pair, stream: Stream, wait: Wait
) -> None:
    here, there = mapped
    remote, local = (driver.allocate_device(c, SIZE_BYTES) for c in (there, here))
    driver.launch(Fill(local, PATTERN), stream)
    driver.launch(KernelCopy(remote, local), stream)
    wait()
    assert driver.compare(remote, PATTERN) == Comparison(0)
    driver.launch(Fill(local, POISON_WORD), stream)
    driver.launch(KernelCopy(local, remote), stream)
    wait()
    assert driver.compare(local, PATTERN) == Comparison(0)
    driver.free_device(there, remote)
    driver.free_device(here, local)


def test_flags_chains_and_atomics_reach_the_other_gpu(
    driver: Driver, mapped: Pair, stream: Stream, wait: Wait
) -> None:
    here, there = mapped
    own, peer = driver.allocate_device(here, 2**20), driver.allocate_device(there, 2**20)
    other = driver.create_stream(there)
    driver.launch(Fill(own, 0), stream)
    driver.launch(Fill(peer, 0), other)
    wait(stream, other)
    driver.launch(Handshake(own, peer, 500, True, 5 * 10**9), stream)
    driver.launch(Handshake(peer, own, 500, False, 5 * 10**9), other)
    wait(stream, other)
    assert driver.read_words(own, 2) == driver.read_words(peer, 2) == (500, 500)

    if driver.native_atomics(0, 1):
        driver.launch(Fill(peer, 0), other)
        wait(other)
        driver.launch(AtomicAdd(peer, 100_000), stream)
        driver.launch(AtomicAdd(peer, 100_000), other)
        wait(stream, other)
        assert driver.read_words(peer, 1) == (200_000,)

    driver.launch(Fill(own, POISON_WORD), stream)
    driver.launch(WriteChain(peer), other)
    wait(stream, other)
    driver.launch(ChaseChain(peer, 2**20 // 128, own), stream)
    wait()
    assert driver.read_words(own, 1) == (0,), "it did not come round"
    driver.destroy_stream(other)
    driver.free_device(here, own)
    driver.free_device(there, peer)
