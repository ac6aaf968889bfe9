"""Kernels, kinds of memory and other processes on a simulated machine, by CUDA's rules."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest

from pytest_gpuxfer.hardware.driver import (
    AtomicAdd,
    ChaseChain,
    Comparison,
    DeviceKind,
    DriverError,
    Feature,
    Fill,
    Handshake,
    HostKind,
    KernelCopy,
    Memory,
    PeerProcessError,
    WriteChain,
)
from pytest_gpuxfer.hardware.simulated.defects import Defects
from pytest_gpuxfer.hardware.simulated.driver import SimulatedDriver
from pytest_gpuxfer.hardware.simulated.machine_reader import load_machine
from pytest_gpuxfer.hardware.simulated.node import Node
from pytest_gpuxfer.hardware.telemetry import NvlinkBytes
from pytest_gpuxfer.model.pattern import Pattern
from tests.unit.simulated_rig import MIB, SECOND_NS, Rig

SIZE = 64 * MIB
PATTERN = Pattern(777)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def launched(rig: Rig, ordinal: int, kernel: Fill | KernelCopy | WriteChain | AtomicAdd) -> float:
    """How long a kernel took, in ns."""
    stream = rig.stream(ordinal)
    return rig.elapsed_ns(stream, lambda: rig.driver.launch(kernel, stream))


def faults(rig: Rig, ordinal: int, kernel: Fill | KernelCopy | ChaseChain | Handshake) -> bool:
    """Whether a kernel ends its context; no answer but CUDA's for an illegal address will do."""
    rig.driver.launch(kernel, rig.stream(ordinal))
    rig.clock.sleep_ns(SECOND_NS)
    try:
        assert rig.driver.stream_idle(rig.stream(ordinal))
    except DriverError as error:
        if error.code != 700:
            raise
        return True
    return False


# Copies by kernels


def test_a_kernel_copy_moves_data_over_the_link_that_the_owners_say(rig: Rig) -> None:
    rig.enable(0, 1)
    own, peer, host = rig.device(0, SIZE), rig.device(1, SIZE), rig.host(SIZE)
    rig.driver.fill_host(host, PATTERN)
    found = rig.hardware.telemetry.nvlink_bytes(rig.uuid(0))
    launched(rig, 0, KernelCopy(own, host))
    launched(rig, 0, KernelCopy(peer, own))
    after = rig.hardware.telemetry.nvlink_bytes(rig.uuid(0))
    assert rig.driver.compare(peer, PATTERN) == Comparison(0)
    assert isinstance(found, NvlinkBytes)
    assert isinstance(after, NvlinkBytes)
    assert after.sent_bytes - found.sent_bytes == SIZE


@pytest.mark.parametrize("kind", [HostKind.PINNED, HostKind.PAGEABLE])
def test_kernels_reach_all_host_memory_but_pageable(rig: Rig, kind: HostKind) -> None:
    kernel = KernelCopy(rig.device(0, SIZE), rig.host(SIZE, kind))
    assert faults(rig, 0, kernel) == (kind is HostKind.PAGEABLE)


def test_a_kernel_copy_from_a_peer_without_access_faults(rig: Rig) -> None:
    assert faults(rig, 0, KernelCopy(rig.device(0, SIZE), rig.device(1, SIZE)))


def test_sharers_split_what_a_gpu_does_and_leave_a_link_its_rate(rig: Rig) -> None:
    rig.enable(0, 1)
    own, peer = rig.device(0, SIZE), rig.device(1, SIZE)
    inside = [launched(rig, 0, KernelCopy(own, rig.device(0, SIZE), count)) for count in (1, 4)]
    over = [launched(rig, 0, KernelCopy(peer, own, count)) for count in (1, 4)]
    assert inside[1] / inside[0] == pytest.approx(4, rel=0.15)
    assert over[1] == pytest.approx(over[0], rel=0.01)


def test_all_to_one_is_one_link_and_disjoint_pairs_do_not_meet(rig: Rig) -> None:
    def slowest_ns(pairs: list[tuple[int, int]]) -> float:
        marks = []
        for source, destination in pairs:
            if not rig.driver.enable_peer_access(rig.context(source), rig.context(destination)).on:
                raise AssertionError
            memories = rig.device(destination, SIZE), rig.device(source, SIZE)
            stream = rig.driver.create_stream(rig.context(source))
            start, end = (rig.driver.create_event(rig.context(source)) for _ in range(2))
            rig.driver.record_event(start, stream)
            for _ in range(8):
                rig.driver.copy(*memories, stream)
            rig.driver.record_event(end, stream)
            marks.append((start, end, stream))
        rig.wait(*(stream for *_, stream in marks))
        return max(rig.driver.elapsed_ns(start, end) for start, end, _ in marks)

    assert 7 * 8 * SIZE / slowest_ns([(gpu, 0) for gpu in range(1, 8)]) == pytest.approx(390, 0.02)
    assert 8 * SIZE / slowest_ns([(0, 1), (2, 3), (4, 5), (6, 7)]) == pytest.approx(390, 0.02)


def test_a_copy_is_slow_only_while_another_shares_its_link(rig: Rig) -> None:
    rig.enable(0, 1)
    long = rig.device(1, 512 * MIB), rig.device(0, 512 * MIB)
    alone_ns = 512 * MIB / rig.rate(*long, 0)
    short_ns = 64 * MIB / rig.rate(rig.device(1, SIZE), rig.device(0, SIZE), 0)
    other = rig.driver.create_stream(rig.context(0))

    def work() -> None:
        rig.driver.copy(*long, rig.stream(0))
        rig.clock.sleep_ns(int(alone_ns / 4))
        rig.driver.copy(rig.device(1, SIZE), rig.device(0, SIZE), other)

    took_ns = rig.elapsed_ns(rig.stream(0), work, gated=False)
    assert took_ns == pytest.approx(alone_ns + short_ns, rel=0.01)


@pytest.mark.parametrize(("fault", "place"), [("gpu0-gpu1", 1), ("gpu0", None)])
def test_flipped_bits_meet_kernels_too(fault: str, place: int | None) -> None:
    rig = Rig("hgx-h200", f"flipped-bit:{fault}")
    rig.enable(0, 1)
    source = rig.device(0, SIZE)
    destination = rig.host(SIZE) if place is None else rig.device(place, SIZE)
    launched(rig, 0, Fill(source, PATTERN))
    launched(rig, 0, KernelCopy(destination, source))
    rig.context(1)
    assert rig.driver.compare(destination, PATTERN).wrong_words == 1


# Chains, flags and atomics


def test_a_chase_ends_where_its_hops_lead(rig: Rig) -> None:
    memory, arrived, stream = rig.device(0, 128 * 1000), rig.device(0, 8), rig.stream(0)
    launched(rig, 0, WriteChain(memory))
    for hops in (1000, 1001):
        rig.driver.launch(ChaseChain(memory, hops, arrived), stream)
        rig.wait(stream)
        (offset,) = rig.driver.read_words(arrived, 1)
        assert (offset == 0) == (hops == 1000)
        assert offset % 128 == 0


def test_a_chase_through_something_else_goes_astray(rig: Rig) -> None:
    memory, arrived = rig.device(0, SIZE), rig.device(0, 8)
    launched(rig, 0, Fill(memory, PATTERN))
    assert faults(rig, 0, ChaseChain(memory, 10, arrived))


def test_a_chain_is_no_pattern(rig: Rig) -> None:
    memory = rig.device(0, SIZE)
    launched(rig, 0, Fill(memory, PATTERN))
    launched(rig, 0, WriteChain(memory))
    assert rig.driver.compare(memory, PATTERN).wrong_words == SIZE // 8


def shake(rig: Rig, limit_ns: int, apart_ns: int) -> list[int]:
    """What both sides answered, the second of them launched so much later."""
    rig.enable(0, 1)
    rig.enable(1, 0)
    flags = [rig.device(gpu, 16) for gpu in (0, 1)]
    for gpu in (0, 1):
        kernel = Handshake(flags[gpu], flags[1 - gpu], 1000, gpu == 0, limit_ns)
        rig.driver.launch(kernel, rig.stream(gpu))
        rig.clock.sleep_ns(apart_ns)
    rig.wait(rig.stream(0), rig.stream(1))
    return [rig.driver.read_words(flag, 2)[1] for flag in flags]


def test_two_kernels_that_run_together_answer_each_other(rig: Rig) -> None:
    before = rig.clock.now_ns()
    assert shake(rig, SECOND_NS, 0) == [1000, 1000]
    assert 1000 * 2 * 800 < rig.clock.now_ns() - before < SECOND_NS // 10


def test_two_kernels_that_never_run_together_answer_nothing(rig: Rig) -> None:
    assert shake(rig, SECOND_NS, 2 * SECOND_NS) == [0, 0]


def test_a_handshake_stops_at_its_limit(rig: Rig) -> None:
    answered = shake(rig, 1_000_000, 0)
    assert answered[0] == answered[1]
    assert 0 < answered[0] < 1000


def test_a_handshake_without_access_faults(rig: Rig) -> None:
    kernel = Handshake(rig.device(0, 16), rig.device(1, 16), 1, True, SECOND_NS)
    assert faults(rig, 0, kernel)


@pytest.mark.parametrize("native", [True, False])
def test_atomics_of_a_peer_are_lost_on_links_that_carry_none(native: bool) -> None:
    machine = load_machine("hgx-h200")
    assert machine.nvlink is not None
    carries = msgspec.structs.replace(machine.nvlink.carries, atomics=native)
    nvlink = msgspec.structs.replace(machine.nvlink, carries=carries)
    machine = msgspec.structs.replace(machine, nvlink=nvlink)
    driver = SimulatedDriver(Node("one", machine, Defects()))
    contexts = [driver.retain_context(gpu) for gpu in (0, 1)]
    driver.enable_peer_access(contexts[1], contexts[0])
    memory = driver.allocate_device(contexts[0], 8)
    for context, times in zip(contexts, (1000, 500), strict=True):
        stream = driver.create_stream(context)
        driver.launch(AtomicAdd(memory, times), stream)
        driver.finish(stream)
    assert driver.native_atomics(1, 0) is native
    assert driver.read_words(memory, 1) == (1500 if native else 1000,)


# Kinds of device memory


@pytest.mark.parametrize("kind", [DeviceKind.POOL, DeviceKind.VMM])
def test_memory_of_a_pool_needs_an_access_of_its_own(rig: Rig, kind: DeviceKind) -> None:
    rig.enable(0, 1)
    rig.enable(1, 0)
    source, destination = rig.device(0, SIZE, kind), rig.device(1, SIZE, kind)
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        rig.driver.copy(destination, source, rig.stream(0))
    rig.driver.grant_access(destination, rig.context(0))
    assert rig.rate(destination, source, 0) > 380
    launched(rig, 0, KernelCopy(destination, source))
    rig.driver.revoke_access(destination, rig.context(0))
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        rig.driver.copy(destination, source, rig.stream(0))
    assert faults(rig, 0, KernelCopy(destination, source))


def test_a_context_grants_no_access_to_memory_of_its_own_kind(rig: Rig) -> None:
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        rig.driver.grant_access(rig.device(0, SIZE), rig.context(1))


def test_no_access_is_granted_where_the_machine_offers_none() -> None:
    rig = Rig("dgx-a100", "peer-access-refused:gpu0-gpu1")
    with pytest.raises(DriverError, match="INVALID_DEVICE"):
        rig.driver.grant_access(rig.device(0, SIZE, DeviceKind.VMM), rig.context(1))


def test_a_machine_without_pools_refuses_them() -> None:
    machine = load_machine("hgx-h200")
    gpu = msgspec.structs.replace(machine.gpu, features=frozenset({Feature.VIRTUAL_MEMORY}))
    driver = SimulatedDriver(Node("old", msgspec.structs.replace(machine, gpu=gpu), Defects()))
    context = driver.retain_context(0)
    assert driver.allocate_device(context, SIZE, DeviceKind.VMM).size_bytes == SIZE
    assert not driver.supports(0, Feature.MEMORY_POOLS)
    with pytest.raises(DriverError, match="NOT_SUPPORTED"):
        driver.allocate_device(context, SIZE, DeviceKind.POOL)


# Managed memory


def test_managed_memory_is_where_it_was_used_last_and_takes_room_there(rig: Rig) -> None:
    driver, context = rig.driver, rig.context(0)
    rig.context(1)
    memory = driver.allocate_managed(context, SIZE)
    whole = driver.free_memory_bytes(context)
    launched(rig, 0, Fill(memory.used_by(0), PATTERN))
    assert driver.free_memory_bytes(context) == whole - SIZE
    assert driver.compare(memory.used_by(1), PATTERN) == Comparison(0)
    assert driver.free_memory_bytes(context) == whole
    assert driver.compare(memory, PATTERN) == Comparison(0)
    driver.free_managed(context, memory)
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        driver.compare(memory, PATTERN)


def test_a_prefetch_spares_the_kernel_its_faults(rig: Rig) -> None:
    memory = rig.driver.allocate_managed(rig.context(0), SIZE)
    took = []
    for prefetched in (False, True):
        rig.driver.fill_host(memory, PATTERN)
        if prefetched:
            rig.driver.prefetch(memory, rig.context(0), rig.stream(0))
        took.append(launched(rig, 0, Fill(memory.used_by(0), 1)))
    assert took[0] > 20 * took[1]


def test_only_managed_memory_is_prefetched(rig: Rig) -> None:
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        rig.driver.prefetch(rig.device(0, SIZE), rig.context(0), rig.stream(0))


def test_memory_is_freed_as_it_was_allocated(rig: Rig) -> None:
    context = rig.context(0)
    device, managed = rig.device(0, SIZE), rig.driver.allocate_managed(context, SIZE)
    for free, memory in (
        (rig.driver.free_host, device),
        (rig.driver.free_managed, device),
        (rig.driver.release_import, device),
        (rig.driver.free_host, managed),
    ):
        with pytest.raises(DriverError, match="INVALID_VALUE"):
            free(context, memory)


# Another process


@pytest.mark.parametrize("kind", [DeviceKind.MALLOC, DeviceKind.VMM])
@pytest.mark.parametrize("importer", [0, 1])
def test_memory_of_another_process_is_the_same_memory(
    rig: Rig, kind: DeviceKind, importer: int
) -> None:
    peer = rig.driver.start_peer(1, hide_others=True)
    memory = rig.driver.import_memory(rig.context(importer), peer.share(SIZE, kind))
    assert memory.ordinal == 1
    peer.fill(PATTERN, SIZE)
    mine = rig.device(importer, SIZE)
    rig.driver.copy(mine, memory, rig.stream(importer))
    rig.wait(rig.stream(importer))
    assert rig.driver.compare(mine, PATTERN) == Comparison(0)
    launched(rig, importer, Fill(memory, Pattern(5)))
    assert peer.compare(Pattern(5), SIZE) == Comparison(0)
    if importer == 0:
        assert rig.rate(memory, mine, 0) > 380
    rig.driver.release_import(rig.context(importer), memory)
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        rig.driver.copy(mine, memory, rig.stream(importer))


def test_another_process_takes_room_until_it_ends(rig: Rig) -> None:
    whole = rig.driver.free_memory_bytes(rig.context(0))
    peer = rig.driver.start_peer(0, hide_others=False)
    peer.share(SIZE, DeviceKind.MALLOC)
    assert rig.driver.free_memory_bytes(rig.context(0)) == whole - SIZE
    peer.close()
    peer.close()
    assert rig.driver.free_memory_bytes(rig.context(0)) == whole
    with pytest.raises(PeerProcessError, match="has ended"):
        peer.fill(0, 8)


def test_another_process_is_mapped_only_where_access_is_offered() -> None:
    rig = Rig("dgx-a100", "peer-access-refused:gpu0-gpu1")
    shared = rig.driver.start_peer(1, hide_others=False).share(SIZE, DeviceKind.MALLOC)
    with pytest.raises(DriverError, match="PEER_ACCESS_UNSUPPORTED"):
        rig.driver.import_memory(rig.context(0), shared)


# Where the CPU is


def test_host_memory_is_near_or_far_as_the_thread_that_asked_for_it() -> None:
    rig = Rig("dgx-a100")
    placement, memory = rig.hardware.placement, rig.device(0, SIZE)
    assert placement.nodes() == (0, 1)

    def rate(host: Memory) -> float:
        return rig.rate(memory, host, 0)

    with suppress(KeyboardInterrupt), placement.on(1):
        far = rig.host(SIZE)
        raise KeyboardInterrupt
    near = rig.host(SIZE)
    assert rate(far) / rate(near) == pytest.approx(0.85, rel=0.02)
    with pytest.raises(ValueError, match="no NUMA node 2"), placement.on(2):
        pass


def test_the_recorded_h200_has_one_node(rig: Rig) -> None:
    assert rig.hardware.placement.nodes() == (0,)
