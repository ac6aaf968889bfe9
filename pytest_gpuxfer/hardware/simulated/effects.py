# ruff: noqa: D103 (the table in faults.py says what each of these does)
"""What each fault does to a simulated machine, and what a machine needs for it to be done."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Final

import msgspec

from pytest_gpuxfer.hardware.simulated.defects import Counters, Damage, Defects, Pair, Trouble
from pytest_gpuxfer.hardware.simulated.links import wire, without
from pytest_gpuxfer.hardware.simulated.machine_file import HostLink, MachineFile
from pytest_gpuxfer.hardware.simulated.places import PAIR, Where, reached

Effect = Callable[[Defects, Where, MachineFile], None]
Lack = Callable[[Where, MachineFile], str | None]
Alter = Callable[[MachineFile, Where], MachineFile]

_SLOW_PAIR: Final = 0.82  # as between GPUs of which some had lost links unseen
_THROTTLED: Final = 0.7
_BUSY: Final = 0.6
_ENCRYPTED: Final = 0.2  # of the host link's rate, through bounce buffers
XID: Final = 74  # an NVLink error
OTHER_PRODUCT: Final = "NVIDIA H20"


def lacks_nothing(_: Where, __: MachineFile) -> str | None:
    return None


def _both_ways(where: Where) -> set[Pair]:
    source, destination = where.pair
    return {(source, destination), (destination, source)}


# What it takes


def no_nvlink(where: Where, machine: MachineFile) -> str | None:
    if machine.nvlink is None:
        return "the machine has no NVLink"
    used = wire(machine)
    unused = [link for link in where.links if (where.gpus[0], link) not in used]
    return f"link{unused[0]} of gpu{where.gpus[0]} is down by design" if unused else None


def no_peers(where: Where, machine: MachineFile) -> str | None:
    """Two GPUs to which the driver offers no peer access even when all is well."""
    if where.form != PAIR or reached(machine, *where.pair):
        return None
    return f"{where} have no peer access on this machine"


def no_two_pairs(_: Where, machine: MachineFile) -> str | None:
    gpus = range(len(machine.gpus))
    peers = {frozenset(pair) for pair in permutations(gpus, 2) if reached(machine, *pair)}
    if not any(not one & other for one in peers for other in peers):
        return "the machine has no two pairs of peers"
    meshed = machine.nvlink is not None and machine.nvlink.pairs is not None
    return "its GPUs are wired to each other, with no switch between" if meshed else None


def no_pcie(_: Where, machine: MachineFile) -> str | None:
    return "data goes over C2C here" if machine.host.link is HostLink.C2C else None


def no_fabric(_: Where, machine: MachineFile) -> str | None:
    switched = machine.nvlink is not None and machine.nvlink.pairs is None
    return None if switched else "the machine has no NVSwitch fabric"


def one_node(_: Where, machine: MachineFile) -> str | None:
    nodes = {slot.numa_node for slot in machine.gpus}
    return "the machine has one NUMA node" if len(nodes) == 1 else None


def one_gpu(_: Where, machine: MachineFile) -> str | None:
    return "the machine has one GPU" if len(machine.gpus) == 1 else None


# What it does


def take_links_down(defects: Defects, where: Where, machine: MachineFile) -> None:
    links = where.links or [link for gpu, link in wire(machine) if gpu == where.gpus[0]]
    defects.down_links |= {(where.gpus[0], link) for link in links}


def halve_links(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.half_links |= {(where.gpus[0], link) for link in where.links}


def flap(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.flapping_links |= {(where.gpus[0], link) for link in where.links}


def drop_out(defects: Defects, where: Where, machine: MachineFile) -> None:
    take_links_down(defects, where, machine)
    _set_fabric(defects, where, machine, "not started")


def _set_fabric(defects: Defects, where: Where, machine: MachineFile, state: str) -> None:
    if machine.gpu.fabric != "not supported":  # of GPUs before Hopper nothing is told
        defects.fabric.update(dict.fromkeys(where.gpus_of(machine), state))


def refuse_access(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.refused_pairs |= _both_ways(where)


def deny_access(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.unsupported_pairs |= _both_ways(where)


def refuse_one_way(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.refused_pairs.add((where.gpus[1], where.gpus[0]))


def stage_copies(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.staged_pairs |= _both_ways(where)


def slow_pair(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.slow_pairs.update(dict.fromkeys(_both_ways(where), _SLOW_PAIR))


def delay_pair(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.late_pairs |= _both_ways(where)


def collapse(defects: Defects, _: Where, __: MachineFile) -> None:
    defects.collapsing = True


def do_damage(damage: Damage) -> Effect:
    def inflict(defects: Defects, where: Where, _: MachineFile) -> None:
        defects.damage.setdefault(where.gpus, set()).add(damage)

    return inflict


def make_trouble(trouble: Trouble) -> Effect:
    def inflict(defects: Defects, where: Where, _: MachineFile) -> None:
        defects.troubles.setdefault(where.gpus, set()).add(trouble)

    return inflict


def hang_kernels(defects: Defects, where: Where, _: MachineFile) -> None:
    for pair in _both_ways(where):
        defects.troubles.setdefault(pair, set()).add(Trouble.KERNEL_HANGS)


def spoil_counters(defect: Counters) -> Effect:
    def inflict(defects: Defects, where: Where, _: MachineFile) -> None:
        defects.counters.setdefault(where.gpus[0], set()).add(defect)

    return inflict


def lower_generation(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.lower_generations.add(where.gpus[0])


def halve_width(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.half_widths.add(where.gpus[0])


def let_sleep(defects: Defects, where: Where, machine: MachineFile) -> None:
    defects.sleepy |= set(where.gpus_of(machine))


def put_far(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.far_gpus.add(where.gpus[0])


def make_noise(defects: Defects, where: Where, machine: MachineFile) -> None:
    defects.noisy |= set(where.gpus_of(machine))


def throttle(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.throttled.add(where.gpus[0])
    defects.slow_gpus[where.gpus[0]] = _THROTTLED


def occupy(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.busy.add(where.gpus[0])
    defects.slow_gpus[where.gpus[0]] = _BUSY


def count_errors(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.erring.add(where.gpus[0])


def report_xid(defects: Defects, where: Where, _: MachineFile) -> None:
    defects.xids[where.gpus[0]] = XID


def turn_mig_on(defects: Defects, where: Where, machine: MachineFile) -> None:
    (gpu,) = where.gpus
    defects.mig.add(gpu)
    others = (other for other in range(len(machine.gpus)) if other != gpu)
    defects.refused_pairs |= {pair for other in others for pair in ((gpu, other), (other, gpu))}


def encrypt(defects: Defects, _: Where, machine: MachineFile) -> None:
    gpus = range(len(machine.gpus))
    defects.confidential = True
    defects.staged_pairs |= set(permutations(gpus, 2))
    defects.slow_gpus.update(dict.fromkeys(gpus, _ENCRYPTED))


def leave_fabric_unready(defects: Defects, where: Where, machine: MachineFile) -> None:
    defects.fabric_not_ready = True
    _set_fabric(defects, where, machine, "in progress")


def lose_driver(defects: Defects, _: Where, __: MachineFile) -> None:
    defects.driver_gone = True


def lose_gpu(machine: MachineFile, where: Where) -> MachineFile:
    return without(machine, where.gpus[0])


def change_product(machine: MachineFile, where: Where) -> MachineFile:
    for gpu in where.gpus_of(machine):
        other = msgspec.structs.replace(machine.kind_of(gpu), name=OTHER_PRODUCT)
        machine = machine.with_kind(gpu, other)
    return machine
