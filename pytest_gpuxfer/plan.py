"""What is to be measured: profile x machine x methods, in the order in which it must happen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import permutations, product
from typing import Final

from pytest_gpuxfer.model import units
from pytest_gpuxfer.model.cell import UNIFORMITY, Cell, Check, Place
from pytest_gpuxfer.model.expectation import Bound, ClassSpec, Expectation, Limit, Profile, Waiver
from pytest_gpuxfer.model.machine import Machine
from pytest_gpuxfer.model.machine_rules import FEWEST_EQUALS
from pytest_gpuxfer.model.measurement import PathKind, SignalName
from pytest_gpuxfer.model.unknown import Unknown
from pytest_gpuxfer.profiles import ProfileError
from pytest_gpuxfer.transfer import machine_checks, methods

_LEAST_PROVABLE_BYTES: Final = units.MIB


def registered_checks() -> tuple[Check, ...]:
    """Every check of every method: each needs a limit, or a reason for having none."""
    return tuple(check for method in methods.ALL for check in method.checks())


def registered_methods() -> tuple[str, ...]:
    """The names of all methods, of the machine's own checks too: what a test's marker may say."""
    checks = (*machine_checks.ALL, *registered_checks())
    groups = (f"{UNIFORMITY}.{check}" for check in methods.EQUAL_EVERYWHERE)
    return (*dict.fromkeys(check.method for check in checks), *groups)


def make_plan(
    profile: Profile, machine: Machine | None, today: str | None = None
) -> tuple[Expectation, ...]:
    """What the profile asks of each cell of this machine, in order.

    Measurements without peer access come first, then access is enabled once. `machine` is None
    where no driver answered: its GPUs are the one cell left. `today` (ISO date) is held against
    the end of waivers; without it none counts. Raises ProfileError for a limit that rests on what
    is not measured where it would have to be.
    """
    if machine is None:
        return (_of_machine(profile, Cell(machine_checks.GPUS, Place.all())),)
    cells = sorted(_cells(profile, machine), key=lambda cell: _stage(cell.check))
    expected = [expect(profile, machine, cell, today) for cell in cells]
    for wanted in expected:
        _check_bases(wanted, len(machine.gpus))
    return (*expected, *_groups(profile, expected, today))


def expect(profile: Profile, machine: Machine, cell: Cell, today: str | None = None) -> Expectation:
    """What the profile asks of `cell`: a planned one, or one of a user's own tests."""
    if cell.check.of_machine:
        expectation = _of_machine(profile, cell)
    else:
        expectation = _of_transfer(profile, cell, len(machine.gpus))
    return replace(expectation, waiver=_waiver(profile, cell, today))


def needs(expectation: Expectation, gpu_count: int) -> tuple[Cell, ...]:
    """The cells whose median rates the limit of this one rests on.

    A check that is not measured at this one's place is asked where each of its flows is, alone and
    with the same size.
    """
    checks = dict.fromkeys(check for check, _ in _relative_bounds(expectation))
    cell = expectation.cell
    return tuple(base for check in checks for base in _bases(check, cell, gpu_count))


def _relative_bounds(expectation: Expectation) -> list[tuple[Check, Bound]]:
    """Those that rest on another check, each with that check."""
    limit = expectation.limit
    bounds = (limit.floor, limit.ceiling, limit.expect) if limit else ()
    return [(bound.of_check, bound) for bound in bounds if bound and bound.of_check]


def _bases(check: Check, cell: Cell, gpu_count: int) -> tuple[Cell, ...]:
    routes = methods.routes_of(cell, gpu_count)
    places = tuple(dict.fromkeys(route.place for route in routes))
    if len(routes) == 1 or not set(places).issubset(methods.places_of(check, gpu_count)):
        return (planned_cell(check, cell.place),)
    return tuple(Cell(check, place, cell.size_bytes) for place in places)


def _check_bases(expectation: Expectation, gpu_count: int) -> None:
    for check, bound in _relative_bounds(expectation):
        if check not in registered_checks():
            raise ProfileError(f"{bound.text!r} has no base: there is no {check}", bound.location)
        for base in _bases(check, expectation.cell, gpu_count):
            if base.place not in methods.places_of(check, gpu_count):
                where = f"{check} is not measured at {base.place}"
                raise ProfileError(f"{bound.text!r} has no base: {where}", bound.location)


def planned_cell(check: Check, place: Place) -> Cell:
    """The cell of a check at the size that the suites measure it at."""
    return Cell(check, place, planned_cell_size(check))


def _cells(profile: Profile, machine: Machine) -> Iterator[Cell]:
    with_pairs = bool(profile.all_pairs or profile.pairs)
    yield from machine_checks.cells(
        machine, with_nvlink=profile.nvlink is not None, with_pairs=with_pairs
    )
    gpu_count = len(machine.gpus)
    for check in registered_checks():
        if check.far and not _has_far_node(machine):
            continue
        for place in methods.places_of(check, gpu_count):
            cell = planned_cell(check, place)
            if _of_one_class(profile, cell, gpu_count):
                yield cell
    yield from _sweep(profile, gpu_count)


def _groups(
    profile: Profile, expected: Sequence[Expectation], today: str | None
) -> Iterator[Expectation]:
    """Outliers are sought last, among the cells of one check and class."""
    equals: dict[tuple[Check, str], list[Cell]] = {}
    for wanted in expected:
        check, usual = wanted.cell.check, planned_cell_size(wanted.cell.check)
        judged = wanted.not_expected is None and wanted.cell.size_bytes == usual
        if check in methods.EQUAL_EVERYWHERE and judged:
            equals.setdefault((check, wanted.link_class or "HOST"), []).append(wanted.cell)
    for (check, name), members in equals.items():
        if len(members) >= FEWEST_EQUALS:
            cell = Cell(Check(f"{UNIFORMITY}.{check}"), Place((), name))
            waiver = _waiver(profile, cell, today)
            yield Expectation(cell, members=tuple(members), waiver=waiver)


def planned_cell_size(check: Check) -> int | None:
    """The size at which the suites measure a check; None where no bytes move."""
    if check.of_machine:
        return None
    return methods.named(check.method).default_size_bytes(check)


def _has_far_node(machine: Machine) -> bool:
    nodes = machine.numa_nodes
    known = all(not isinstance(gpu.numa_node, Unknown) for gpu in machine.gpus)
    return known and not isinstance(nodes, Unknown) and len(nodes) > 1


def _sweep(profile: Profile, gpu_count: int) -> Iterator[Cell]:
    """Sizes from start-up to full rate, at the first pair of each class: what predictions need."""
    first: dict[str, Place] = {}
    for pair in permutations(range(gpu_count), 2):
        spec = profile.class_of(Place.pair(*pair))
        if spec is not None:
            first.setdefault(spec.name, Place.pair(*pair))
    for place, check in product(first.values(), methods.SWEPT):
        yield from (
            Cell(check, place, size_bytes) for size_bytes in methods.swept_sizes_bytes(check)
        )


def _classes(profile: Profile, cell: Cell, gpu_count: int) -> list[ClassSpec | None]:
    """The class of each pair of GPUs that a cell's flows connect."""
    routes = methods.routes_of(cell, gpu_count)
    return [
        profile.class_of(Place.pair(route.source, route.destination))
        for route in routes
        if route.source is not None and route.destination is not None
        if route.source != route.destination
    ]


def _of_one_class(profile: Profile, cell: Cell, gpu_count: int) -> bool:
    """Flows over pairs of several classes, or of none, have no limit in common."""
    specs = _classes(profile, cell, gpu_count)
    return None not in specs and len({spec.name for spec in specs if spec}) <= 1


def _stage(check: Check) -> int:
    """0: nothing with peer access; 1: access is enabled and proven; 2: measured with it on."""
    if check == machine_checks.PEER_ACCESS:
        return 1
    if check in machine_checks.BETWEEN_PEERS:
        return 2
    needs_access = (
        not check.of_machine and check.access and methods.named(check.method).uses_peer_access
    )
    return 2 if needs_access else 0


def _waiver(profile: Profile, cell: Cell, today: str | None) -> Waiver | None:
    if today is None:
        return None
    in_date = (waiver for waiver in profile.waivers if today <= waiver.until)
    return next((waiver for waiver in in_date if fnmatchcase(cell.id, waiver.cells)), None)


def _of_machine(profile: Profile, cell: Cell) -> Expectation:
    """One that asks for just what its check reads."""
    check, plain = cell.check, Expectation(cell)
    if check == machine_checks.GPUS:
        return replace(plain, gpus=profile.gpus, location=profile.gpus_location)
    if check == machine_checks.NVLINK and profile.nvlink:
        return replace(plain, nvlink=profile.nvlink, location=profile.nvlink.location)
    if check == machine_checks.PCIE and profile.pcie:
        return replace(plain, pcie=profile.pcie, location=profile.pcie.location)
    spec = profile.class_of(cell.place)
    if check in machine_checks.BETWEEN_PEERS and spec:
        if why := _not_between(check, spec):
            return replace(plain, not_expected=why)
        return replace(
            plain,
            peer_access_required=spec.peer_access_required,
            link_class=spec.name,
            location=spec.location,
        )
    return replace(plain, not_expected="the profile does not declare it")


def _not_between(check: Check, spec: ClassSpec) -> str | None:
    """Why a check between peers has nothing to find on pairs of a class, or None."""
    if spec.path is PathKind.STAGED and not spec.peer_access_required:
        return f"the profile asks {spec.name} pairs for no peer access"
    if check == machine_checks.ATOMICS and spec.path is PathKind.PCIE_P2P:
        return "PCIe carries no atomic operations between GPUs"
    return None


def _of_transfer(profile: Profile, cell: Cell, gpu_count: int) -> Expectation:
    method, size_bytes = methods.named(cell.check.method), cell.size_bytes or 0
    specs = _classes(profile, cell, gpu_count)
    spec = next(filter(None, specs), None)
    # Flows over pairs of several classes have no limit in common.
    one_class = len({each.name if each else None for each in specs}) <= 1
    limit = profile.limit_for(cell, spec.name if spec else None) if one_class else None
    plain = Expectation(
        cell,
        path=method.path,
        link_class=spec.name if spec else None,
        limit=limit,
        tolerance=_tolerance(profile, limit),
        not_expected=limit.not_expected if limit else None,
        location=spec.location if spec else None,
        peer_access_required=bool(
            spec and spec.peer_access_required and method.uses_peer_access and cell.check.access
        ),
    )
    # Fewer bytes than a counter's grain and its idle traffic prove nothing.
    if spec and method.direct and size_bytes >= _LEAST_PROVABLE_BYTES:
        plain = _over_pair(plain, spec)
    return replace(plain, physical=_physical(profile, plain.path))


def _tolerance(profile: Profile, limit: Limit | None) -> float:
    return profile.tolerance if limit is None or limit.tolerance is None else limit.tolerance


def _over_pair(plain: Expectation, spec: ClassSpec) -> Expectation:
    """The path that the class asks for; without peer access it must be the driver's staging."""
    if plain.cell.check.access:
        return replace(plain, path=spec.path, proof=spec.proof)
    counters = [name for name in spec.proof if name is SignalName.COUNTERS]
    return replace(plain, path=PathKind.STAGED, proof=(*counters, SignalName.ACCESS))


def _physical(profile: Profile, path: PathKind | None) -> Bound | None:
    """What the declared link of a path can carry: whoever measures more has measured wrongly."""
    if path in (None, PathKind.LOCAL, PathKind.C2C):
        return None  # no link that a profile declares
    link = profile.nvlink if path is PathKind.NVLINK else profile.pcie
    if link is None:
        return None
    name = "NVLink" if path is PathKind.NVLINK else "PCIe"
    words = f"{units.format_rate(link.rate_bytes_per_s)} of {name}"
    return Bound(link.rate_bytes_per_s, words, link.location)
