"""What can be wrong with a simulated machine: one table, an entry a fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Final

import msgspec

from pytest_gpuxfer.hardware.simulated.defects import Counters, Damage, Defects, Pair, Trouble
from pytest_gpuxfer.hardware.simulated.errors import SimulationError, unknown_name
from pytest_gpuxfer.hardware.simulated.links import wire, without
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

Effect = Callable[[Defects, Where, MachineFile], None]
Lack = Callable[[Where, MachineFile], str | None]
Alter = Callable[[MachineFile, Where], MachineFile]

_SLOW_PAIR: Final = 0.82  # as between GPUs of which some had lost links unseen
_THROTTLED: Final = 0.7
_BUSY: Final = 0.6
_ENCRYPTED: Final = 0.2  # of the host link's rate, through bounce buffers
_XID: Final = 74  # an NVLink error
_OTHER_PRODUCT: Final = "NVIDIA H20"


def _nothing(_: Where, __: MachineFile) -> str | None:
    return None


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
    inflict: Effect | None = field(repr=False)
    lacks: Lack = field(default=_nothing, repr=False)
    alter: Alter | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.name}[:{'|'.join(self.forms)}]  {self.meaning} (default: {self.default})"


def _both_ways(where: Where) -> set[Pair]:
    source, destination = where.pair
    return {(source, destination), (destination, source)}


# What it takes


def _no_nvlink(where: Where, machine: MachineFile) -> str | None:
    if machine.nvlink is None:
        return "the machine has no NVLink"
    used = wire(machine)
    unused = [link for link in where.links if (where.gpus[0], link) not in used]
    return f"link{unused[0]} of gpu{where.gpus[0]} is down by design" if unused else None


def _no_fabric(_: Where, machine: MachineFile) -> str | None:
    switched = machine.nvlink is not None and machine.nvlink.pairs is None
    return None if switched else "the machine has no NVSwitch fabric"


def _one_node(_: Where, machine: MachineFile) -> str | None:
    nodes = {slot.numa_node for slot in machine.gpus}
    return "the machine has one NUMA node" if len(nodes) == 1 else None


def _one_gpu(_: Where, machine: MachineFile) -> str | None:
    return "the machine has one GPU" if len(machine.gpus) == 1 else None


# What it does


def _take_links_down(defects: Defects, where: Where, machine: MachineFile) -> None:
    links = where.links or [link for gpu, link in wire(machine) if gpu == where.gpus[0]]
    defects.down_links |= {(where.gpus[0], link) for link in links}


def _halve_links(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.half_links |= {(where.gpus[0], link) for link in where.links}


def _flap(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.flapping_links |= {(where.gpus[0], link) for link in where.links}


def _drop_out(defects: Defects, where: Where, machine: MachineFile) -> None:
    _take_links_down(defects, where, machine)
    _set_fabric(defects, where, machine, "not started")


def _set_fabric(defects: Defects, where: Where, machine: MachineFile, state: str) -> None:
    if machine.gpu.fabric != "not supported":  # of GPUs before Hopper nothing is told
        defects.fabric.update(dict.fromkeys(where.gpus_of(machine), state))


def _refuse_access(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.refused_pairs |= _both_ways(where)


def _deny_access(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.unsupported_pairs |= _both_ways(where)


def _refuse_one_way(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.refused_pairs.add((where.gpus[1], where.gpus[0]))


def _stage_copies(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.staged_pairs |= _both_ways(where)


def _slow_pair(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.slow_pairs.update(dict.fromkeys(_both_ways(where), _SLOW_PAIR))


def _delay_pair(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.late_pairs |= _both_ways(where)


def _collapse(defects: Defects, _: Where, __: MachineFile) -> None:
    defects.collapsing = True


def _damage(damage: Damage) -> Effect:
    def inflict(defects: Defects, where: Where, _: MachineFile) -> None:
        defects.damage.setdefault(where.gpus, set()).add(damage)

    return inflict


def _trouble(trouble: Trouble) -> Effect:
    def inflict(defects: Defects, where: Where, _: MachineFile) -> None:
        defects.troubles.setdefault(where.gpus, set()).add(trouble)

    return inflict


def _hang_kernels(defects: Defects, where: Where, _: MachineFile) -> None:
    for pair in _both_ways(where):
        defects.troubles.setdefault(pair, set()).add(Trouble.KERNEL_HANGS)


def _counters(defect: Counters) -> Effect:
    def inflict(defects: Defects, where: Where, _: MachineFile) -> None:
        defects.counters.setdefault(where.gpus[0], set()).add(defect)

    return inflict


def _lower_generation(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.lower_generations.add(where.gpus[0])


def _halve_width(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.half_widths.add(where.gpus[0])


def _let_sleep(defects: Defects, where: Where, machine: MachineFile) -> None:
    defects.sleepy |= set(where.gpus_of(machine))


def _put_far(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.far_gpus.add(where.gpus[0])


def _make_noise(defects: Defects, where: Where, machine: MachineFile) -> None:
    defects.noisy |= set(where.gpus_of(machine))


def _throttle(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.throttled.add(where.gpus[0])
    defects.slow_gpus[where.gpus[0]] = _THROTTLED


def _occupy(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.busy.add(where.gpus[0])
    defects.slow_gpus[where.gpus[0]] = _BUSY


def _err(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.erring.add(where.gpus[0])


def _report_xid(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.xids[where.gpus[0]] = _XID


def _turn_mig_on(defects: Defects, where: Where, machine: MachineFile) -> None:
    (gpu,) = where.gpus
    defects.mig.add(gpu)
    others = (other for other in range(len(machine.gpus)) if other != gpu)
    defects.refused_pairs |= {pair for other in others for pair in ((gpu, other), (other, gpu))}


def _encrypt(defects: Defects, _: Where, machine: MachineFile) -> None:
    gpus = range(len(machine.gpus))
    defects.confidential = True
    defects.staged_pairs |= set(permutations(gpus, 2))
    defects.slow_gpus.update(dict.fromkeys(gpus, _ENCRYPTED))


def _leave_fabric_unready(defects: Defects, where: Where, machine: MachineFile) -> None:
    defects.fabric_not_ready = True
    _set_fabric(defects, where, machine, "in progress")


def _lose_driver(defects: Defects, _: Where, __: MachineFile) -> None:
    defects.driver_gone = True


def _lose_gpu(machine: MachineFile, where: Where) -> MachineFile:
    return without(machine, where.gpus[0])


def _change_product(machine: MachineFile, where: Where) -> MachineFile:
    for gpu in where.gpus_of(machine):
        other = msgspec.structs.replace(machine.kind_of(gpu), name=_OTHER_PRODUCT)
        machine = machine.with_kind(gpu, other)
    return machine


_WAY: Final = (PAIR, GPU)
_FAULTS: Final = (
    FaultKind(
        "peer-access-refused", "the driver offers two GPUs no peer access",
        "gpu0-gpu1", (PAIR,), _refuse_access,
    ),
    FaultKind(
        "enable-fails", "peer access is offered, and enabling it answers unsupported",
        "gpu0-gpu1", (PAIR,), _deny_access,
    ),
    FaultKind(
        "access-one-way", "the first GPU may use the second one's memory, not the other way round",
        "gpu0-gpu1", (PAIR,), _refuse_one_way,
    ),
    FaultKind(
        "staged-despite-access",
        "peer access is enabled, yet copies both ways go through host memory",
        "gpu0-gpu1", (PAIR,), _stage_copies,
    ),
    FaultKind(
        "link-down", "an NVLink, some, or each of a GPU, is down",
        "gpu3/link7", (LINK, LINKS, GPU), _take_links_down, _no_nvlink,
    ),
    FaultKind(
        "link-half-rate", "an NVLink runs at half its rate",
        "gpu3/link7", (LINK, LINKS), _halve_links, _no_nvlink,
    ),
    FaultKind(
        "flapping-link", "an NVLink goes down and comes back, again and again",
        "gpu3/link7", (LINK, LINKS), _flap, _no_nvlink,
    ),
    FaultKind(
        "fabric-dropout", "a GPU has lost all NVLinks and its place in the fabric",
        "gpu3", (GPU,), _drop_out, _no_fabric,
    ),
    FaultKind(
        "fabric-in-progress", "the fabric is not ready, and CUDA answers 802",
        ALL, (ALL,), _leave_fabric_unready, _no_fabric,
    ),
    FaultKind(
        "pair-slow", "two GPUs reach 82% of what other pairs do, both ways",
        "gpu0-gpu1", (PAIR,), _slow_pair,
    ),
    FaultKind(
        "staging-latency", "copies of two GPUs start as late as staged ones, at their full rate",
        "gpu0-gpu1", (PAIR,), _delay_pair,
    ),
    FaultKind(
        "switch-collapse", "two pairs that write at once fall to 7% of their rates",
        ALL, (ALL,), _collapse, _one_gpu,
    ),
    FaultKind(
        "pcie-generation", "a GPU's PCIe link is one generation short, under load too",
        "gpu3", (GPU,), _lower_generation,
    ),
    FaultKind(
        "pcie-width", "a GPU's PCIe link has half its lanes",
        "gpu3", (GPU,), _halve_width,
    ),
    FaultKind(
        "pcie-idle", "PCIe links train down to Gen1 while idle, as healthy ones do",
        ALL, (GPU, ALL), _let_sleep,
    ),
    FaultKind(
        "numa-far", "a GPU hangs on another NUMA node than the firmware says",
        "gpu3", (GPU,), _put_far, _one_node,
    ),
    FaultKind(
        "writes-dropped", "what the first GPU writes to the second one's memory never arrives",
        "gpu0-gpu1", (PAIR,), _damage(Damage.DROPPED),
    ),
    FaultKind(
        "zeros", "zeros arrive instead of what was copied or stored over the peer link",
        "gpu0-gpu1", _WAY, _damage(Damage.ZEROS),
    ),
    FaultKind(
        "nan", "what arrives over the peer link is NaN, every float of it",
        "gpu0-gpu1", _WAY, _damage(Damage.NAN),
    ),
    FaultKind(
        "stale", "each copy that way brings what the one before should have brought",
        "gpu0-gpu1", _WAY, _damage(Damage.STALE),
    ),
    FaultKind(
        "flipped-bit", "each copy that way, or between a GPU and the host, has one wrong bit",
        "gpu0-gpu1", _WAY, _damage(Damage.FLIPPED_BIT),
    ),
    FaultKind(
        "one-page", "one page of 64 KiB of each copy over the peer link is wrong",
        "gpu0-gpu1", _WAY, _damage(Damage.ONE_PAGE),
    ),
    FaultKind(
        "kernel-hangs", "kernels that touch the other GPU's memory never end; copies pass",
        "gpu0-gpu1", (PAIR,), _hang_kernels,
    ),
    FaultKind(
        "copy-hangs", "a copy that way never ends",
        "gpu0-gpu1", _WAY, _trouble(Trouble.COPY_HANGS),
    ),
    FaultKind(
        "call-hangs", "the driver call that copies that way never returns: it blocks for real",
        "gpu0-gpu1", _WAY, _trouble(Trouble.CALL_HANGS),
    ),
    FaultKind(
        "sticky-error", "a copy that way ends its context: every call of it answers 700",
        "gpu0-gpu1", _WAY, _trouble(Trouble.STICKY_ERROR),
    ),
    FaultKind(
        "crash", "the driver call that copies that way ends the process: it aborts for real",
        "gpu0-gpu1", _WAY, _trouble(Trouble.CRASH),
    ),
    FaultKind(
        "xid", f"the driver reports Xid {_XID} of a GPU in mid-run",
        "gpu3", (GPU,), _report_xid,
    ),
    FaultKind(
        "errors-rising", "a GPU's NVLink errors and PCIe replays rise with its traffic",
        "gpu3", (GPU,), _err,
    ),
    FaultKind(
        "throttled", "a GPU is hot, says so, and reaches 70% of its rates",
        "gpu3", (GPU,), _throttle,
    ),
    FaultKind(
        "gpu-busy", "another process runs on a GPU, and leaves 60% of its rates",
        "gpu3", (GPU,), _occupy,
    ),
    FaultKind(
        "noise", "rates vary by 8% from moment to moment, as other tools see it",
        ALL, (GPU, ALL), _make_noise,
    ),
    FaultKind(
        "counters-missing", "a GPU's NVLink byte counters are not supported",
        "gpu0", (GPU,), _counters(Counters.MISSING), _no_nvlink,
    ),
    FaultKind(
        "counters-stuck", "a GPU's NVLink byte counters never rise",
        "gpu0", (GPU,), _counters(Counters.STUCK), _no_nvlink,
    ),
    FaultKind(
        "counters-moved", "another process moves bytes over a GPU's NVLinks meanwhile",
        "gpu0", (GPU,), _counters(Counters.MOVED), _no_nvlink,
    ),
    FaultKind(
        "gpu-missing", "a GPU is not there: neither CUDA nor NVML lists it",
        "gpu3", (GPU,), None, _one_gpu, _lose_gpu,
    ),
    FaultKind(
        "other-product", f"a GPU, or each, is another product: {_OTHER_PRODUCT}",
        ALL, (GPU, ALL), None, alter=_change_product,
    ),
    FaultKind(
        "mig", "MIG is on, and leaves a GPU no peer access",
        "gpu3", (GPU,), _turn_mig_on,
    ),
    FaultKind(
        "confidential-computing", "confidential computing: all traffic is encrypted and staged",
        ALL, (ALL,), _encrypt,
    ),
    FaultKind(
        "driver-gone", "the driver fails after the GPUs were listed",
        ALL, (ALL,), _lose_driver,
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
