"""Where a check is measured, and which flows run at once there. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import combinations, permutations

from pytest_gpuxfer.model.cell import Check, Place
from pytest_gpuxfer.transfer.methods.base import HOST, Route, Shape

# With fewer GPUs a pattern is no other than a simpler one.
_FEWEST_GPUS = {
    "all-to-one": 3, "one-to-all": 3, "ring": 3, "all-to-all": 3, "disjoint-pairs": 4,
    "host-to-all": 2, "all-to-host": 2, "host-and-all": 2,
}  # fmt: skip
_WAYS = ("round", "back")  # of disjoint pairs: from the lower GPU to the higher, and back
_GROUPS = ("all-to-all", "host-to-all", "all-to-host", "host-and-all")


def places(check: Check, shapes: Iterable[Shape], gpu_count: int) -> tuple[Place, ...]:
    """Where a check is measured on a machine of `gpu_count` GPUs."""
    pattern, gpus = check.pattern, range(gpu_count)
    if gpu_count < _FEWEST_GPUS.get(pattern or "", 1):
        return ()
    if pattern == "ring":
        return tuple(Place((), f"ring-{shift}") for shift in gpus[1:])
    if pattern == "disjoint-pairs":
        numbers = range(1, 1 << (gpu_count - 1).bit_length())
        rounds = [number for number in numbers if len(_round(number, gpu_count)) > 1]
        return tuple(Place((), f"{way}-{number}") for number in rounds for way in _WAYS)
    if pattern in _GROUPS:
        return (Place.all(),)
    if pattern in ("all-to-one", "one-to-all"):
        return tuple(Place.gpu(gpu) for gpu in gpus)
    found: list[Place] = []
    for shape in shapes:
        if shape is not Shape.PAIR:
            found += [Place.gpu(gpu) for gpu in gpus]
            continue
        # Both directions at once are the same from either end.
        pairs = combinations if pattern == "bidirectional" else permutations
        found += [Place.pair(*pair) for pair in pairs(gpus, 2)]
    return tuple(found)


def routes(
    check: Check, shapes: Iterable[Shape], place: Place, gpu_count: int
) -> tuple[Route, ...]:
    """The flows that run at once when `check` is measured at `place`."""
    ends = _ends(check.pattern, tuple(shapes), place, gpu_count)
    sources, destinations = (Counter(end[side] for end in ends) for side in (0, 1))
    used: dict[int | None, int] = {}
    numbered: list[Route] = []
    for source, destination in ends:
        # A GPU that takes part in several flows has a stream and buffers for each.
        slot = max(used.get(gpu, 0) for gpu in (source, destination) if gpu is not HOST)
        sharing = sources[source], destinations[destination]
        numbered.append(Route(source, destination, slot, *sharing))
        used.update({gpu: slot + 1 for gpu in (source, destination) if gpu is not HOST})
    return tuple(numbered)


def _ends(
    pattern: str | None, shapes: tuple[Shape, ...], place: Place, gpu_count: int
) -> list[tuple[int | None, int | None]]:
    gpus = range(gpu_count)
    match pattern:
        case "ring":
            shift = int(str(place).removeprefix("ring-"))
            return [(gpu, (gpu + shift) % gpu_count) for gpu in gpus]
        case "disjoint-pairs":
            way, number = str(place).split("-")
            pairs = _round(int(number), gpu_count)
            return [*pairs] if way == _WAYS[0] else [pair[::-1] for pair in pairs]
        case "all-to-all":
            return list(permutations(gpus, 2))
        case "host-to-all":
            return [(HOST, gpu) for gpu in gpus]
        case "all-to-host":
            return [(gpu, HOST) for gpu in gpus]
        case "host-and-all":
            return [end for gpu in gpus for end in ((HOST, gpu), (gpu, HOST))]
        case "all-to-one":
            return [(gpu, place.gpus[0]) for gpu in gpus if gpu != place.gpus[0]]
        case "one-to-all":
            return [(place.gpus[0], gpu) for gpu in gpus if gpu != place.gpus[0]]
    forth = _one_way(shapes, place)
    return [forth, forth[::-1]] if pattern == "bidirectional" else [forth]


def _round(number: int, gpu_count: int) -> list[tuple[int, int]]:
    """One round of all against all: every pair of GPUs is in the round of its numbers' XOR."""
    return [(gpu, gpu ^ number) for gpu in range(gpu_count) if gpu < gpu ^ number < gpu_count]


def _one_way(shapes: tuple[Shape, ...], place: Place) -> tuple[int | None, int | None]:
    if place.is_pair:
        return place.gpus[0], place.gpus[1]
    (gpu,) = place.gpus
    if Shape.FROM_HOST in shapes:
        return HOST, gpu
    return (gpu, HOST) if Shape.TO_HOST in shapes else (gpu, gpu)
