"""Holds a profile's figures against physics and against the profile itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_gpuxfer.model import units
from pytest_gpuxfer.model.cell import CellError, Check, Engine, Place, parse_place
from pytest_gpuxfer.model.expectation import Bound, Limit, Location, NvlinkSpec, Profile
from pytest_gpuxfer.model.measurement import PathKind
from pytest_gpuxfer.profiles.errors import quote, suggest
from pytest_gpuxfer.profiles.grammar import nvlinks_of_class
from pytest_gpuxfer.profiles.methods import Over, Where, method_of

LOW_PART: Final = 0.4  # of the declared link; a healthy copy engine reaches 0.8 and more
# Copies this large run at the link's rate; smaller ones pay mostly for their start.
LARGE_BYTES: Final = 64 * units.MIB


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a profile's figures, where it stands."""

    message: str
    location: Location

    def __str__(self) -> str:
        return f"{self.location}:{self.location.column}: {self.message}"


@dataclass(frozen=True, slots=True)
class _Link:
    """What bounds a limit: a declared link's name and its rate one way."""

    name: str
    rate_bytes_per_s: float

    def __str__(self) -> str:
        return f"declared {self.name}, {units.format_rate(self.rate_bytes_per_s)}"


def lint(profile: Profile) -> list[Finding]:
    """Everything that is wrong with the limits of `profile`, in their order."""
    found: list[Finding] = []
    for limit in profile.limits:
        unfit = [*_unfit(profile, limit)]
        found += unfit or [*_unphysical(profile, limit), *_inverted(limit)]
    return [*found, *_repeated(profile.limits)]


def uncovered(profile: Profile, registered: Sequence[Check]) -> list[str]:
    """One line for each registered check that some place has no limit for."""
    lines: list[str] = []
    for check in registered:
        if method_of(check).between_gpus and _classes(profile) == [None]:
            continue  # no pairs, no places
        speaking = [limit for limit in profile.limits if limit.check.covers(check)]
        at_pairs = method_of(check).where is not Where.GPU
        for name in _classes(profile) if at_pairs else [None]:
            if not any(limit.on in (None, name) for limit in speaking):
                where = f" on {name}" if name else ""
                lines.append(
                    f"{profile.file}: {check}{where} has no limit;"
                    " add one, or not_expected, or rate: unlimited with a reason"
                )
    return lines


def _classes(profile: Profile) -> list[str | None]:
    """The classes that pairs are given; [None] where there are no pairs."""
    names = [profile.all_pairs] if profile.all_pairs else []
    return [*dict.fromkeys([*names, *profile.pairs.values()])] or [None]


def _unfit(profile: Profile, limit: Limit) -> Iterator[Finding]:
    """Why this limit can never apply."""
    check, method = limit.check, method_of(limit.check)
    if check.initiator and not method.initiators:
        yield Finding(
            f"{check} can never apply: {check.method} has no write or read", limit.location
        )
    if not check.access and not method.controlled:
        message = f"{check} can never apply: {check.method} is not measured without peer access"
        yield Finding(message, limit.location)
    if limit.not_expected is None and method.between_gpus and _classes(profile) == [None]:
        message = f"{check} can never apply: this profile has no pairs; write not_expected: reason"
        yield Finding(message, limit.location)
    if limit.ceiling and not check.is_latency:
        message = f"{check} is judged by its rate; write a floor"
        yield Finding(message, limit.ceiling.location)
    if limit.floor and check.is_latency:
        message = f"{check} is judged by its time; write a ceiling"
        yield Finding(message, limit.floor.location)
    if limit.on is not None and (why := _never_at(profile, limit.on, method.where)):
        yield Finding(f"{check} can never apply on {quote(limit.on)}: {why}", limit.location)
    for bound in (limit.floor, limit.expect):
        if bound and bound.of_check and (why := _no_base(check, bound.of_check)):
            yield Finding(f"{quote(bound.text)} has no base: {why}", bound.location)


def _never_at(profile: Profile, on: str, where: Where) -> str:
    """Why nothing is measured at `on`, or nothing."""
    if on in profile.classes:
        return "it is measured at each GPU, not at pairs" if where is Where.GPU else ""
    try:
        place = parse_place(on)
    except CellError:
        place = Place.all()
    if not place.gpus:
        return f"no such class; {suggest(on, [*profile.classes, 'gpu0', 'gpu0-gpu1'])}"
    if len(set(place.gpus)) < len(place.gpus):
        return "name a class, a pair or a GPU"
    if max(place.gpus) >= profile.gpus:
        return f"this profile's GPUs are gpu0 to gpu{profile.gpus - 1}"
    if where is not Where.EITHER and place.is_pair != (where is Where.PAIR):
        return f"it is measured at each {where.value}"
    return ""


def _no_base(check: Check, base: Check) -> str:
    """Why `check` cannot rest on the rate of `base`, or nothing."""
    method, own = method_of(base), method_of(check)
    if base.is_latency:
        return f"{base} has a time, not a rate"
    if method.initiators and base.initiator is None:
        return f"say which, {base.method}.write or {base.method}.read"
    if method.where is not own.where and Where.EITHER not in (method.where, own.where):
        return f"{base} is measured at each {method.where.value}, {check} is not"
    if check.covers(base):
        return f"{check} would rest on itself"
    return ""


def _links(profile: Profile, limit: Limit) -> list[_Link]:
    """The declared links that this limit's rate crosses, one for each class that it speaks of."""
    method = method_of(limit.check)
    pcie = [_Link("pcie", profile.pcie.rate_bytes_per_s)] if profile.pcie else []
    if limit.check.pattern or method.over is Over.NOTHING:
        return []  # what many flows reach together is no single link's rate
    if method.over is Over.HOST_LINK or not limit.check.access:
        return pcie
    links: list[_Link] = []
    for name in _classes_of(profile, limit):
        path = profile.classes[name].path
        if path is PathKind.NVLINK and profile.nvlink:
            links.append(_Link("nvlink", _nvlink_rate(profile.nvlink, name)))
        elif path in (PathKind.PCIE_P2P, PathKind.STAGED):
            links += pcie
    return links


def _nvlink_rate(nvlink: NvlinkSpec, class_name: str) -> float:
    """What the links of one pair carry: in a mesh they are only some of the GPU's."""
    links = nvlinks_of_class(class_name) or nvlink.links
    return links * nvlink.per_link_bytes_per_s


def _classes_of(profile: Profile, limit: Limit) -> list[str]:
    if limit.on is None:
        return [name for name in _classes(profile) if name]
    if limit.on in profile.classes:
        return [limit.on]
    spec = profile.class_of(parse_place(limit.on))
    return [spec.name] if spec else []


def _unphysical(profile: Profile, limit: Limit) -> Iterator[Finding]:
    floor = _absolute(limit.floor)
    for link in _links(profile, limit):
        for name, bound in (("floor", floor), ("expect", _absolute(limit.expect))):
            if bound and bound.value > link.rate_bytes_per_s:
                message = f"{name} {quote(bound.text)} is above the {link}: no machine can meet it"
                yield Finding(message, bound.location)
        if floor and floor.value < LOW_PART * link.rate_bytes_per_s:
            message = f"floor {quote(floor.text)} is below {LOW_PART:.0%} of the {link}"
            if _runs_at_link_rate(limit, link):
                remedy = "a sick machine would pass; raise it"
                yield Finding(f"{message}: {remedy}", floor.location)
            elif not limit.below_because:
                yield Finding(f"{message}; raise it, or add below_because: reason", floor.location)


def _runs_at_link_rate(limit: Limit, link: _Link) -> bool:
    """Whether a healthy machine's copies of this kind come near the link's rate."""
    check = limit.check
    if limit.sizes_bytes and limit.sizes_bytes[1] < LARGE_BYTES:
        return False
    if check.engine is not Engine.CE or check.memory or not check.access:
        return False
    if check.method in ("peer_copy", "unified_copy"):
        return link.name == "nvlink"
    return check.method in ("host_to_device", "device_to_host")


def _inverted(limit: Limit) -> Iterator[Finding]:
    floor, expect = _absolute(limit.floor), _absolute(limit.expect)
    if floor and expect and expect.value < floor.value:
        message = (
            f"expect {quote(expect.text)} is below the floor {quote(floor.text)};"
            " expect is what a healthy machine shows, the floor is the least"
        )
        yield Finding(message, expect.location)


def _absolute(bound: Bound | None) -> Bound | None:
    return None if bound is None or bound.of_check else bound


def _repeated(limits: Sequence[Limit]) -> Iterator[Finding]:
    """Limits of one file of which the later one leaves nothing to the earlier."""
    seen: dict[object, Limit] = {}
    for limit in limits:
        key = (limit.location.file, limit.check, limit.on, limit.sizes_bytes)
        if key in seen:
            message = f"a second limit for {limit.check}, first in line {seen[key].location.line}"
            yield Finding(f"{message}, for the same places and sizes; keep one", limit.location)
        seen[key] = limit
