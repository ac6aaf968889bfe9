"""What can be wrong with a simulated machine: one table, an entry a fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pytest_gpuxfer.hardware.simulated import effects
from pytest_gpuxfer.hardware.simulated.defects import Counters, Damage, Defects, Trouble
from pytest_gpuxfer.hardware.simulated.errors import SimulationError, unknown_name
from pytest_gpuxfer.hardware.simulated.machine_file import MachineFile
from pytest_gpuxfer.hardware.simulated.places import (
    ALL,
    GPU,
    LINK,
    LINKS,
    PAIR,
    Where,
    nearest_place,
    parse_place,
)


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One entry of the table.

    `inflict` leaves its defects, `alter` makes another machine of it; `lacks` says why a machine
    cannot have it.
    """

    name: str
    meaning: str
    default: str
    forms: tuple[str, ...]
    inflict: effects.Effect | None = field(repr=False)
    lacks: effects.Lack = field(default=effects.lacks_nothing, repr=False)
    alter: effects.Alter | None = field(default=None, repr=False)

    def __str__(self) -> str:
        places = "" if self.forms == (ALL,) else f" [{' or '.join(self.forms)}: {self.default}]"
        return f"{self.name:<22} {self.meaning}{places}"


_WAY: Final = (PAIR, GPU)
_FAULTS: Final = (
    FaultKind(
        "peer-access-refused", "the driver offers two GPUs no peer access",
        "gpu0-gpu1", (PAIR,), effects.refuse_access, effects.no_peers,
    ),
    FaultKind(
        "enable-fails", "peer access is offered, and enabling it answers unsupported",
        "gpu0-gpu1", (PAIR,), effects.deny_access, effects.no_peers,
    ),
    FaultKind(
        "access-one-way", "the first GPU may use the second one's memory, not the other way round",
        "gpu0-gpu1", (PAIR,), effects.refuse_one_way, effects.no_peers,
    ),
    FaultKind(
        "staged-despite-access",
        "peer access is enabled, yet copies both ways go through host memory",
        "gpu0-gpu1", (PAIR,), effects.stage_copies, effects.no_peers,
    ),
    FaultKind(
        "link-down", "an NVLink, some, or each of a GPU, is down",
        "gpu3/link7", (LINK, LINKS, GPU), effects.take_links_down, effects.no_nvlink,
    ),
    FaultKind(
        "link-half-rate", "an NVLink runs at half its rate",
        "gpu3/link7", (LINK, LINKS), effects.halve_links, effects.no_nvlink,
    ),
    FaultKind(
        "flapping-link", "an NVLink goes down and comes back, again and again",
        "gpu3/link7", (LINK, LINKS), effects.flap, effects.no_nvlink,
    ),
    FaultKind(
        "fabric-dropout", "a GPU has lost all NVLinks and its place in the fabric",
        "gpu3", (GPU,), effects.drop_out, effects.no_fabric,
    ),
    FaultKind(
        "fabric-in-progress", "the fabric is not ready, and CUDA answers 802",
        ALL, (ALL,), effects.leave_fabric_unready, effects.no_fabric,
    ),
    FaultKind(
        "pair-slow", "two GPUs reach 82% of what other pairs do, both ways",
        "gpu0-gpu1", (PAIR,), effects.slow_pair, effects.no_peers,
    ),
    FaultKind(
        "staging-latency", "copies of two GPUs start as late as staged ones, at their full rate",
        "gpu0-gpu1", (PAIR,), effects.delay_pair, effects.no_peers,
    ),
    FaultKind(
        "switch-collapse", "two pairs that write at once fall to 7% of their rates",
        ALL, (ALL,), effects.collapse, effects.no_two_pairs,
    ),
    FaultKind(
        "pcie-generation", "a GPU's PCIe link is one generation short, under load too",
        "gpu3", (GPU,), effects.lower_generation, effects.no_pcie,
    ),
    FaultKind(
        "pcie-width", "a GPU's PCIe link has half its lanes",
        "gpu3", (GPU,), effects.halve_width, effects.no_pcie,
    ),
    FaultKind(
        "pcie-idle", "PCIe links train down to Gen1 while idle, as healthy ones do",
        ALL, (GPU, ALL), effects.let_sleep,
    ),
    FaultKind(
        "numa-far", "a GPU hangs on another NUMA node than the firmware says",
        "gpu3", (GPU,), effects.put_far, effects.one_node,
    ),
    FaultKind(
        "writes-dropped", "what the first GPU writes to the second one's memory never arrives",
        "gpu0-gpu1", (PAIR,), effects.do_damage(Damage.DROPPED), effects.no_peers,
    ),
    FaultKind(
        "zeros", "zeros arrive instead of what was copied or stored over the peer link",
        "gpu0-gpu1", _WAY, effects.do_damage(Damage.ZEROS), effects.no_peers,
    ),
    FaultKind(
        "nan", "what arrives over the peer link is NaN, every float of it",
        "gpu0-gpu1", _WAY, effects.do_damage(Damage.NAN), effects.no_peers,
    ),
    FaultKind(
        "stale", "each copy that way brings what the one before should have brought",
        "gpu0-gpu1", _WAY, effects.do_damage(Damage.STALE),
    ),
    FaultKind(
        "flipped-bit", "each copy that way, or between a GPU and the host, has one wrong bit",
        "gpu0-gpu1", _WAY, effects.do_damage(Damage.FLIPPED_BIT),
    ),
    FaultKind(
        "one-page", "one page of 64 KiB of each copy over the peer link is wrong",
        "gpu0-gpu1", _WAY, effects.do_damage(Damage.ONE_PAGE), effects.no_peers,
    ),
    FaultKind(
        "kernel-hangs", "kernels that touch the other GPU's memory never end; copies pass",
        "gpu0-gpu1", (PAIR,), effects.hang_kernels, effects.no_peers,
    ),
    FaultKind(
        "copy-hangs", "a copy that way never ends",
        "gpu0-gpu1", _WAY, effects.make_trouble(Trouble.COPY_HANGS), effects.no_peers,
    ),
    FaultKind(
        "call-hangs", "the driver call that copies that way never returns: it blocks for real",
        "gpu0-gpu1", _WAY, effects.make_trouble(Trouble.CALL_HANGS), effects.no_peers,
    ),
    FaultKind(
        "sticky-error", "a copy that way ends its context: every call of it answers 700",
        "gpu0-gpu1", _WAY, effects.make_trouble(Trouble.STICKY_ERROR), effects.no_peers,
    ),
    FaultKind(
        "crash", "the driver call that copies that way ends the process: it aborts for real",
        "gpu0-gpu1", _WAY, effects.make_trouble(Trouble.CRASH), effects.no_peers,
    ),
    FaultKind(
        "xid", f"the driver reports Xid {effects.XID} of a GPU in mid-run",
        "gpu3", (GPU,), effects.report_xid,
    ),
    FaultKind(
        "errors-rising", "a GPU's NVLink errors and PCIe replays rise with its traffic",
        "gpu3", (GPU,), effects.count_errors,
    ),
    FaultKind(
        "throttled", "a GPU is hot, says so, and reaches 70% of its rates",
        "gpu3", (GPU,), effects.throttle,
    ),
    FaultKind(
        "gpu-busy", "another process runs on a GPU, and leaves 60% of its rates",
        "gpu3", (GPU,), effects.occupy,
    ),
    FaultKind(
        "noise", "rates vary by 8% from moment to moment, as other tools see it",
        ALL, (GPU, ALL), effects.make_noise,
    ),
    FaultKind(
        "counters-missing", "a GPU's NVLink byte counters are not supported",
        "gpu0", (GPU,), effects.spoil_counters(Counters.MISSING), effects.no_nvlink,
    ),
    FaultKind(
        "counters-stuck", "a GPU's NVLink byte counters never rise",
        "gpu0", (GPU,), effects.spoil_counters(Counters.STUCK), effects.no_nvlink,
    ),
    FaultKind(
        "counters-moved", "another process moves bytes over a GPU's NVLinks meanwhile",
        "gpu0", (GPU,), effects.spoil_counters(Counters.MOVED), effects.no_nvlink,
    ),
    FaultKind(
        "gpu-missing", "a GPU is not there: neither CUDA nor NVML lists it",
        "gpu3", (GPU,), None, effects.one_gpu, effects.lose_gpu,
    ),
    FaultKind(
        "other-product", f"a GPU, or each, is another product: {effects.OTHER_PRODUCT}",
        ALL, (GPU, ALL), None, alter=effects.change_product,
    ),
    FaultKind(
        "mig", "MIG is on, and leaves a GPU no peer access",
        "gpu3", (GPU,), effects.turn_mig_on,
    ),
    FaultKind(
        "confidential-computing", "confidential computing: all traffic is encrypted and staged",
        ALL, (ALL,), effects.encrypt,
    ),
    FaultKind(
        "driver-gone", "the driver fails after the GPUs were listed",
        ALL, (ALL,), effects.lose_driver,
    ),
)  # fmt: skip


def fault_kinds() -> tuple[FaultKind, ...]:
    """Every kind of fault."""
    return _FAULTS


def fault_lines() -> list[str]:
    """Every kind of fault, a line each."""
    return [str(kind) for kind in _FAULTS]


def inflict(
    faults: Sequence[str], machine: MachineFile
) -> tuple[MachineFile, Defects, tuple[str, ...]]:
    """What `faults` make of `machine`, their defects, and each of them with its place.

    Those that change what is there come first: the places of others are on what is left.
    Raises SimulationError.
    """
    by_name = {kind.name: kind for kind in _FAULTS}
    asked: list[tuple[FaultKind, str]] = []
    for fault in faults:
        name, _, place = fault.partition(":")
        if name not in by_name:
            raise unknown_name("fault", name, tuple(by_name))
        asked.append((by_name[name], place))
    defects, placed = Defects(), []
    for kind, place in sorted(asked, key=lambda each: each[0].alter is None):
        where = _place(kind, place, machine)
        if kind.alter is not None:
            machine = kind.alter(machine, where)
        if kind.inflict is not None:
            kind.inflict(defects, where, machine)
        placed.append(f"{kind.name}:{where}")
    return machine, defects, tuple(placed)


def _place(kind: FaultKind, text: str, machine: MachineFile) -> Where:
    try:
        if text:
            where = parse_place(text, kind.forms, machine)
        else:
            where = nearest_place(kind.default, kind.forms, machine)
        if why := kind.lacks(where, machine):
            raise SimulationError(why)
    except SimulationError as error:
        raise SimulationError(f"fault {kind.name}: {error}") from None
    return where
