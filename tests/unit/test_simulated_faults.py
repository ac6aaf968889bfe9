"""Each fault of a simulated machine, met by the calls that the product makes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_gpuxfer.hardware.discovery import discover
from pytest_gpuxfer.hardware.driver import DriverError, Fill, Handshake, KernelCopy, Memory
from pytest_gpuxfer.hardware.simulated import open_machine
from pytest_gpuxfer.hardware.telemetry import NvlinkBytes
from pytest_gpuxfer.model.measurement import Access
from pytest_gpuxfer.model.pattern import POISON_WORD, Pattern
from pytest_gpuxfer.model.unknown import Unknown
from tests.unit.simulated_rig import MIB, SECOND_NS, Rig

ROOT = Path(__file__).parents[2]
SIZE = 64 * MIB
PATTERN, EARLIER = Pattern(99), Pattern(4096)


class Pair(Rig):
    """GPUs 0 and 1 with access both ways, and a buffer on each."""

    def __init__(self, *faults: str, machine: str = "dgx-a100") -> None:
        super().__init__(machine, *faults)
        self.enable(0, 1)
        self.enable(1, 0)
        self.memories = [self.device(gpu, SIZE) for gpu in (0, 1)]

    def write(self, gpu: int, content: Pattern | int) -> None:
        self.driver.launch(Fill(self.memories[gpu], content), self.stream(gpu))
        self.wait(self.stream(gpu))

    def copy(self, source: int, destination: int, issuer: int, content: Pattern = PATTERN) -> None:
        """Copy fresh data over poison."""
        self.write(source, content)
        self.write(destination, POISON_WORD)
        stream = self.stream(issuer)
        self.driver.copy(self.memories[destination], self.memories[source], stream)
        self.wait(stream)

    def speed(self, source: int, destination: int) -> float:
        return self.rate(self.memories[destination], self.memories[source], source)


def idle_after(rig: Rig, ordinal: int) -> bool:
    rig.clock.sleep_ns(100 * SECOND_NS)
    return rig.driver.stream_idle(rig.stream(ordinal))


# Peer access


def test_enabling_fails_though_access_was_offered() -> None:
    rig = Rig("dgx-a100", "enable-fails:gpu0-gpu1")
    assert rig.driver.can_access_peer(0, 1)
    assert rig.driver.enable_peer_access(rig.context(0), rig.context(1)) is Access.UNSUPPORTED
    assert rig.driver.enable_peer_access(rig.context(1), rig.context(0)) is Access.UNSUPPORTED
    rig.enable(0, 2)


def test_access_one_way_leaves_copy_engines_at_full_rate() -> None:
    rig = Rig("dgx-a100", "access-one-way:gpu0-gpu1")
    offered = discover(rig.hardware).peer_access_offered
    assert (offered["gpu0-gpu1"], offered["gpu1-gpu0"]) == (True, False)
    rig.enable(0, 1)
    memories = [rig.device(gpu, SIZE) for gpu in (0, 1)]
    assert rig.rate(memories[1], memories[0], 0) > 250
    assert rig.rate(memories[0], memories[1], 1) > 250


# Links and rates


def test_several_links_are_taken_down_at_once() -> None:
    rig = Rig("dgx-a100", "link-down:gpu3/link0-5")
    assert rig.hardware.faults == ("link-down:gpu3/link0-5",)
    assert discover(rig.hardware).link_class(3, 0) == "NV6"


def test_a_link_at_half_rate_says_so_and_costs_its_share() -> None:
    pair = Pair("link-half-rate:gpu1/link2")
    ports = pair.hardware.telemetry.nvlinks(pair.uuid(1))
    assert not isinstance(ports, Unknown)
    assert [port.link for port in ports if port.rate_bytes_per_s == 12.5e9] == [2]
    assert pair.speed(0, 1) / Pair().speed(0, 1) == pytest.approx(11.5 / 12, rel=0.01)


def test_a_slow_pair_shows_nothing_but_its_rate() -> None:
    pair = Pair("pair-slow")
    whole = Pair().speed(0, 1)
    assert pair.speed(0, 1) / whole == pytest.approx(0.82, rel=0.01)
    assert pair.speed(1, 0) / whole == pytest.approx(0.82, rel=0.01)
    assert discover(pair.hardware).link_class(0, 1) == "NV12"


def test_a_gpu_that_dropped_out_of_the_fabric_has_no_links_and_no_peers() -> None:
    machine = discover(open_machine("hgx-h200", ("fabric-dropout:gpu2",)))
    assert [gpu.fabric for gpu in machine.gpus].count("not started") == 1
    assert machine.gpus[2].active_nvlinks() == 0
    assert machine.link_class(2, 0) == "NODE"
    refused = {pair for pair, offered in machine.peer_access_offered.items() if not offered}
    assert refused == {pair for pair in machine.peer_access_offered if "gpu2" in pair}


def test_a_flapping_link_is_down_now_and_then() -> None:
    rig = Rig("dgx-a100", "flapping-link:gpu0/link1")
    seen = set()
    for _ in range(100):
        ports = rig.hardware.telemetry.nvlinks(rig.uuid(0))
        assert not isinstance(ports, Unknown)
        seen.add(tuple(port.link for port in ports if port.active is False))
        rig.clock.sleep_ns(2_000_000)
    assert seen == {(), (1,)}


@pytest.mark.parametrize(
    ("fault", "under_load", "part"),
    [("pcie-generation:gpu0", (3, 16), 0.5), ("pcie-width:gpu0", (4, 8), 0.5)],
)
def test_a_short_pcie_link_shows_and_costs_its_share(
    fault: str, under_load: tuple[int, int], part: float
) -> None:
    rates = {}
    for gpu in (0, 1):
        rig = Rig("dgx-a100", fault)
        memory, host = rig.device(gpu, SIZE), rig.host(SIZE)
        rates[gpu] = rig.rate(memory, host, gpu)
        rig.driver.copy(memory, host, rig.stream(gpu))
        link = rig.hardware.telemetry.pcie_link(rig.uuid(gpu))
        assert (link.generation, link.width) == (under_load if gpu == 0 else (4, 16))
        assert link.max_generation == 4
    assert rates[0] / rates[1] == pytest.approx(part, rel=0.02)


def test_an_idle_link_that_sleeps_is_awake_under_load() -> None:
    rig = Rig("hgx-h200", "pcie-idle")
    telemetry = rig.hardware.telemetry
    assert telemetry.pcie_link(rig.uuid(0)).generation == 1
    rig.driver.copy(rig.device(0, SIZE), rig.host(SIZE), rig.stream(0))
    assert telemetry.pcie_link(rig.uuid(0)).generation == 5


def test_a_gpu_on_the_other_node_is_far_from_the_memory_that_was_meant_to_be_near() -> None:
    rates = []
    for faults in ((), ("numa-far:gpu0",)):
        rig = Rig("dgx-a100", *faults)
        with rig.hardware.placement.on(0):
            rates.append(rig.rate(rig.device(0, SIZE), rig.host(SIZE), 0))
        assert rig.hardware.telemetry.numa_node(rig.uuid(0)) == 0
    assert rates[1] / rates[0] == pytest.approx(0.85, rel=0.02)


def test_two_pairs_that_write_at_once_collapse_and_one_does_not() -> None:
    rig = Rig("dgx-a100", "switch-collapse")
    pairs = ((0, 4), (1, 6))
    memories = {gpu: rig.device(gpu, SIZE) for pair in pairs for gpu in pair}
    for source, destination in pairs:
        rig.enable(source, destination)
    assert rig.rate(memories[4], memories[0], 0) > 250

    def both() -> None:
        for _ in range(8):
            for source, destination in pairs:
                rig.driver.copy(memories[destination], memories[source], rig.stream(source))

    assert 8 * SIZE / rig.elapsed_ns(rig.stream(0), both) < 25


def test_late_copies_reach_their_full_rate_when_they_are_large() -> None:
    late, plain = Pair("staging-latency"), Pair()
    assert late.speed(0, 1) == pytest.approx(plain.speed(0, 1), rel=0.12)
    small = [memory.window(0, 16) for memory in late.memories]
    stream = late.stream(0)
    took_ns = late.elapsed_ns(stream, lambda: late.driver.copy(small[1], small[0], stream))
    assert took_ns > 20_000


@pytest.mark.parametrize("fault", ["throttled:gpu1", "gpu-busy:gpu1"])
def test_a_hot_or_busy_gpu_says_so_and_is_slower(fault: str) -> None:
    pair = Pair(fault)
    assert pair.speed(0, 1) < 0.75 * Pair().speed(0, 1)
    status = pair.hardware.telemetry.status(pair.uuid(1))
    assert bool(status.throttle_reasons) != bool(status.other_processes)
    calm = pair.hardware.telemetry.status(pair.uuid(0))
    assert (calm.throttle_reasons, calm.other_processes) == ((), 0)


def test_noise_varies_from_moment_to_moment() -> None:
    pair = Pair("noise")
    rates = []
    for _ in range(20):
        rates.append(pair.speed(0, 1))
        pair.clock.sleep_ns(5_000_000)
    spread = (max(rates) - min(rates)) / max(rates)
    assert 0.04 < spread < 0.1


# Data


@pytest.mark.parametrize(
    ("fault", "got"),
    [("zeros", 0), ("nan", 0x7FC00000_7FC00000), ("writes-dropped", POISON_WORD)],
)
def test_other_data_arrives_that_way_and_right_data_the_other(fault: str, got: int) -> None:
    pair = Pair(f"{fault}:gpu0-gpu1")
    pair.copy(0, 1, issuer=0)
    seen = pair.driver.compare(pair.memories[1], PATTERN)
    assert (seen.wrong_words, seen.got) == (SIZE // 8, got)
    pair.copy(1, 0, issuer=1)
    assert pair.driver.compare(pair.memories[0], PATTERN).wrong_words == 0


def test_dropped_writes_are_no_trouble_to_who_reads() -> None:
    pair = Pair("writes-dropped:gpu0-gpu1")
    pair.copy(0, 1, issuer=1)
    assert pair.driver.compare(pair.memories[1], PATTERN).wrong_words == 0


def test_dropped_writes_are_stores_of_kernels_too_and_no_flag_is_heard() -> None:
    pair = Pair("writes-dropped:gpu0-gpu1")
    pair.write(1, POISON_WORD)
    pair.driver.launch(Fill(pair.memories[1], PATTERN), pair.stream(0))
    pair.wait(pair.stream(0))
    assert pair.driver.compare(pair.memories[1], PATTERN).wrong_words == SIZE // 8
    flags = [memory.window(0, 16) for memory in pair.memories]
    for gpu in (0, 1):
        pair.write(gpu, 0)
        kernel = Handshake(flags[gpu], flags[1 - gpu], 10, leads=gpu == 0, limit_ns=SECOND_NS)
        pair.driver.launch(kernel, pair.stream(gpu))
    pair.wait(pair.stream(0), pair.stream(1))
    assert pair.driver.read_words(flags[0], 2)[1] == 0


def test_stale_data_is_that_of_the_copy_before() -> None:
    pair = Pair("stale:gpu0-gpu1")
    pair.copy(0, 1, 0, EARLIER)
    assert pair.driver.compare(pair.memories[1], EARLIER).wrong_words == 0
    for _ in range(2):
        pair.copy(0, 1, 0, PATTERN)
        assert pair.driver.compare(pair.memories[1], EARLIER).wrong_words == 0


def test_one_page_of_each_copy_is_wrong() -> None:
    pair = Pair("one-page:gpu0-gpu1")
    pair.copy(0, 1, 0)
    seen = pair.driver.compare(pair.memories[1], PATTERN)
    assert seen.wrong_words == 64 * 1024 // 8
    assert seen.first_offset_bytes % (64 * 1024) == 0


def test_staged_copies_do_not_cross_the_link_that_spoils_them() -> None:
    rig = Rig("dgx-a100", "zeros:gpu0-gpu1")
    memories = [rig.device(gpu, SIZE) for gpu in (0, 1)]
    rig.driver.launch(Fill(memories[0], PATTERN), rig.stream(0))
    rig.wait(rig.stream(0))
    rig.driver.copy(memories[1], memories[0], rig.stream(0))
    rig.wait(rig.stream(0))
    assert rig.driver.compare(memories[1], PATTERN).wrong_words == 0


# Calls and processes


def kernel_copy(pair: Pair) -> None:
    pair.driver.launch(KernelCopy(pair.memories[1], pair.memories[0]), pair.stream(0))


def test_kernels_hang_on_a_peer_while_copies_pass() -> None:
    pair = Pair("kernel-hangs:gpu0-gpu1")
    pair.copy(0, 1, 0)
    pair.copy(1, 0, 1)
    kernel_copy(pair)
    assert not idle_after(pair, 0)


def test_a_copy_hangs_that_way_and_none_the_other() -> None:
    pair = Pair("copy-hangs:gpu0-gpu1")
    pair.copy(1, 0, 1)
    pair.driver.copy(pair.memories[1], pair.memories[0], pair.stream(0))
    assert not idle_after(pair, 0)


def test_copies_to_a_host_hang_where_a_gpu_is_named() -> None:
    pair = Pair("copy-hangs:gpu0")
    pair.copy(0, 1, 1)
    pair.driver.copy(pair.host(SIZE), pair.memories[0], pair.stream(0))
    assert not idle_after(pair, 0)


def test_a_sticky_error_ends_the_context_for_good() -> None:
    pair = Pair("sticky-error:gpu0-gpu1")
    pair.driver.copy(pair.memories[1], pair.memories[0], pair.stream(0))
    with pytest.raises(DriverError, match="700"):
        idle_after(pair, 0)
    with pytest.raises(DriverError, match="700"):
        pair.device(0, SIZE)
    pair.device(1, SIZE)


def test_a_call_that_hangs_blocks_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair("call-hangs:gpu0-gpu1")

    def wake(_: float) -> None:
        raise InterruptedError

    monkeypatch.setattr(time, "sleep", wake)
    pair.driver.copy(pair.memories[0], pair.memories[1], pair.stream(1))
    with pytest.raises(InterruptedError):
        pair.driver.copy(pair.memories[1], pair.memories[0], pair.stream(0))


def test_a_crash_ends_the_process() -> None:
    script = (
        "from tests.unit.test_simulated_faults import Pair\n"
        "pair = Pair('crash:gpu0-gpu1')\n"
        "pair.driver.copy(pair.memories[0], pair.memories[1], pair.stream(1))\n"
        "print('alive', flush=True)\n"
        "pair.driver.copy(pair.memories[1], pair.memories[0], pair.stream(0))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert ended.stdout == "alive\n"
    assert ended.returncode < 0


# Health


def test_errors_and_replays_rise_with_traffic_and_stand_still_without_a_fault() -> None:
    for faults in ((), ("errors-rising:gpu1",)):
        pair = Pair(*faults)
        before = [pair.hardware.telemetry.status(pair.uuid(gpu)) for gpu in (0, 1)]
        pair.copy(0, 1, 0)
        pair.driver.copy(pair.host(SIZE), pair.memories[1], pair.stream(1))
        pair.wait(pair.stream(1))
        after = [pair.hardware.telemetry.status(pair.uuid(gpu)) for gpu in (0, 1)]
        assert after[0] == before[0]
        assert (after[1].nvlink_errors != before[1].nvlink_errors) == bool(faults)
        assert (after[1].pcie_replays != before[1].pcie_replays) == bool(faults)


def test_a_flapping_link_counts_its_recoveries() -> None:
    pair = Pair("flapping-link:gpu0/link1")
    telemetry, counts = pair.hardware.telemetry, []
    for _ in range(2):
        counts.append([telemetry.status(pair.uuid(gpu)).nvlink_errors for gpu in (0, 1)])
        pair.clock.sleep_ns(SECOND_NS)
    assert counts[1][0] != counts[0][0]
    assert counts[1][1] == counts[0][1]


def test_an_xid_comes_in_mid_run_once() -> None:
    pair = Pair("xid:gpu1")
    telemetry = pair.hardware.telemetry
    seen = []
    for _ in range(40):
        pair.copy(0, 1, 0)
        seen.append(telemetry.status(pair.uuid(1)).xids)
    assert seen[0] == ()
    assert seen[-1] == (74,)
    assert telemetry.status(pair.uuid(0)).xids == ()


# Counters


def risen(pair: Pair, gpu: int) -> int:
    """How far a GPU's sent bytes rise over one copy to the other GPU."""

    def sent() -> int:
        read = pair.hardware.telemetry.nvlink_bytes(pair.uuid(gpu))
        assert isinstance(read, NvlinkBytes)
        return read.sent_bytes

    before = sent()
    pair.copy(gpu, 1 - gpu, gpu)
    return sent() - before


def test_counters_can_be_missing_stuck_or_moved_by_others() -> None:
    telemetry = Rig("dgx-a100", "counters-missing:gpu0").hardware.telemetry
    first, second = (gpu.uuid for gpu in discover(open_machine("dgx-a100", ())).gpus[:2])
    assert isinstance(telemetry.nvlink_bytes(first), Unknown)
    assert isinstance(telemetry.nvlink_bytes(second), NvlinkBytes)
    stuck = Pair("counters-stuck:gpu0")
    assert [risen(stuck, 0), risen(stuck, 1)] == [0, SIZE]
    assert risen(Pair("counters-moved:gpu0"), 0) > 1.1 * SIZE


# The machine


def test_a_missing_gpu_is_seen_by_nobody_and_the_others_move_up() -> None:
    hardware = open_machine("dgx-a100", ("link-down:gpu3/link7", "gpu-missing:gpu3"))
    whole, machine = discover(open_machine("dgx-a100", ())), discover(hardware)
    assert [gpu.uuid for gpu in machine.gpus] == [gpu.uuid for gpu in whole.gpus if gpu.index != 3]
    assert machine.gpus[3].active_nvlinks() == 11


def test_another_product_is_told_by_cuda_and_nvml_alike() -> None:
    one = discover(open_machine("dgx-a100", ("other-product:gpu2",)))
    assert [gpu.name for gpu in one.gpus].count("NVIDIA A100-SXM4-80GB") == 7
    assert one.gpus[2].name == "NVIDIA H20"
    listed = open_machine("dgx-a100", ("other-product",)).telemetry.gpus()
    assert not isinstance(listed, Unknown)
    assert {gpu.name for gpu in listed} == {"NVIDIA H20"}


def test_mig_takes_a_gpus_peers_away() -> None:
    machine = discover(open_machine("dgx-a100", ("mig:gpu1",)))
    assert [gpu.index for gpu in machine.gpus if gpu.mig_enabled] == [1]
    assert not machine.peer_access_offered["gpu0-gpu1"]
    assert machine.peer_access_offered["gpu0-gpu2"]


def test_confidential_computing_stages_all_copies_slowly_though_all_looks_well() -> None:
    rig = Rig("hgx-h200", "confidential-computing")
    machine = discover(rig.hardware)
    assert rig.hardware.telemetry.status(rig.uuid(0)).confidential is True
    assert machine.link_class(0, 1) == "NV18"
    assert {gpu.fabric for gpu in machine.gpus} == {"completed"}
    rig.enable(0, 1)
    memories: list[Memory] = [rig.device(gpu, SIZE) for gpu in (0, 1)]
    assert rig.rate(memories[1], memories[0], 0, gated=False) < 10


def test_a_fabric_in_progress_answers_802_before_any_gpu_is_listed() -> None:
    hardware = open_machine("hgx-h200", ("fabric-in-progress",))
    with pytest.raises(DriverError) as caught:
        discover(hardware)
    assert caught.value.not_ready


def test_a_driver_that_goes_lists_its_gpus_first() -> None:
    rig = Rig("dgx-a100", "driver-gone")
    assert len(discover(rig.hardware).gpus) == 8
    with pytest.raises(DriverError, match="NO_DEVICE"):
        rig.context(0)


def test_faults_combine() -> None:
    rig = Rig("dgx-a100", "pair-slow:gpu0-gpu1", "pair-slow:gpu2-gpu3", "link-down:gpu0/link0-1")
    machine = discover(rig.hardware)
    assert machine.link_class(0, 4) == "NV10"
    assert machine.faults == (
        "pair-slow:gpu0-gpu1", "pair-slow:gpu2-gpu3", "link-down:gpu0/link0-1",
    )  # fmt: skip
