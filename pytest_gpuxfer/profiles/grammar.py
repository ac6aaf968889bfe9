"""The grammar of a profile: nodes to the `Profile` that they describe."""

from __future__ import annotations

import re
from itertools import permutations
from typing import Final

from pytest_gpuxfer.model.cell import CellError, Place, parse_place
from pytest_gpuxfer.model.expectation import ClassSpec, NvlinkSpec, PcieSpec, Profile, Waiver
from pytest_gpuxfer.model.machine import PCIE_LANE_BYTES_PER_S
from pytest_gpuxfer.model.measurement import PathKind, SignalName
from pytest_gpuxfer.profiles.document import Fields
from pytest_gpuxfer.profiles.errors import quote, suggest
from pytest_gpuxfer.profiles.limits import read_limit
from pytest_gpuxfer.profiles.reader import Section, Value

SCHEMA: Final = 1
OWN_KEYS: Final = ("schema", "name")  # each file says these itself, also one that extends
REQUIRED_KEYS: Final = (
    *OWN_KEYS, "title", "match", "gpus", "links", "classes", "pairs", "limits", "tolerance",
)  # fmt: skip
OPTIONAL_KEYS: Final = ("extends", "waivers")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_CLASS: Final = re.compile(r"NV(?P<links>[1-9][0-9]?)|PIX|PXB|PHB|NODE|SYS|C2C")
_LONGEST_PATTERN: Final = 200  # matching takes the square of its length
_PAIR_PATHS: Final = (PathKind.NVLINK, PathKind.PCIE_P2P, PathKind.STAGED, PathKind.C2C)
_MOST_GPUS: Final = 64
_WIDTHS: Final = ("1", "2", "4", "8", "16", "32")


def check_header(root: Section) -> None:
    """What every file must say for itself, before anything is merged into it."""
    if "schema" in root and not root["schema"].says(str(SCHEMA)):
        raise root["schema"].wrong(f"this release reads schema {SCHEMA} alone")
    root.check_keys(OWN_KEYS, (*REQUIRED_KEYS, *OPTIONAL_KEYS))
    name = root["name"].text()
    if _NAME.fullmatch(name) is None:
        raise root["name"].wrong(f"{quote(name)} is no name; use letters, digits, '-' and '_'")


def build(fields: Fields, file: str) -> Profile:
    """The profile that a merged document describes. Raises ProfileError."""
    root = Section(fields, "")
    root.check_keys(REQUIRED_KEYS, OPTIONAL_KEYS)
    gpus = root["gpus"].whole(1, _MOST_GPUS)
    links = root["links"].section(("nvlink", "pcie"))
    nvlink, pcie = _read_nvlink(links["nvlink"]), _read_pcie(links["pcie"])
    classes = {} if root["classes"].says("none") else _read_classes(root["classes"], nvlink, pcie)
    all_pairs, pairs = _read_pairs(root["pairs"], gpus, classes)
    products = root["match"].section(("gpus",))["gpus"].items()
    return Profile(
        name=root["name"].text(),
        title=root["title"].text(),
        file=file,
        match_gpus=tuple(product.text() for product in products),
        gpus=gpus,
        gpus_location=root["gpus"].at,
        nvlink=nvlink,
        pcie=pcie,
        classes=classes,
        all_pairs=all_pairs,
        pairs=pairs,
        limits=tuple(read_limit(value, nvlink, pcie) for value in root["limits"].items()),
        tolerance=root["tolerance"].part(),
        waivers=tuple(map(_read_waiver, root["waivers"].items() if "waivers" in root else ())),
    )


def _read_nvlink(value: Value) -> NvlinkSpec | None:
    if value.says("none"):
        return None
    section = value.section(("generation", "links", "per_link"))
    return NvlinkSpec(
        generation=section["generation"].whole(1, 9),
        links=section["links"].whole(1, 99),
        per_link_bytes_per_s=section["per_link"].rate_bytes_per_s(),
        location=value.at,
    )


def _read_pcie(value: Value) -> PcieSpec | None:
    if value.says("none"):
        return None
    section = value.section(("generation", "width"))
    return PcieSpec(
        generation=section["generation"].whole(1, max(PCIE_LANE_BYTES_PER_S)),
        width=int(section["width"].word(_WIDTHS)),
        location=value.at,
    )


def _read_classes(
    value: Value, nvlink: NvlinkSpec | None, pcie: PcieSpec | None
) -> dict[str, ClassSpec]:
    section = value.mapping()
    classes: dict[str, ClassSpec] = {}
    for name in section:
        if _CLASS.fullmatch(name) is None:
            message = "is no link class; write NV12 (NV and the number of links), PIX, PXB, PHB,"
            raise section.wrong_key(name, f"{message} NODE, SYS or C2C")
        classes[name] = _read_class(name, section[name])
        if nvlink and (nvlinks_of_class(name) or 0) > nvlink.links:
            message = f"has more links than each GPU, which has {nvlink.links} in 'links.nvlink'"
            raise section.wrong_key(name, message)
        path = classes[name].path
        missing = (path is PathKind.NVLINK and not nvlink) or (
            path is PathKind.PCIE_P2P and not pcie
        )
        if missing:
            message = f"path {path}, but 'links' declares none; declare it or name another path"
            raise section[name].wrong(message)
    return classes


def nvlinks_of_class(name: str) -> int | None:
    """How many NVLinks a class says that its pairs have, or None for classes of other links."""
    match = _CLASS.fullmatch(name)
    return int(match["links"]) if match and match["links"] else None


def _read_class(name: str, value: Value) -> ClassSpec:
    section = value.section(("path", "peer_access", "proof"))
    return ClassSpec(
        name=name,
        path=section["path"].member(PathKind, _PAIR_PATHS),
        peer_access_required=section["peer_access"].word(("required", "optional")) == "required",
        proof=tuple(witness.member(SignalName) for witness in section["proof"].items()),
        location=value.at,
    )


def _read_pairs(
    value: Value, gpus: int, classes: dict[str, ClassSpec]
) -> tuple[str | None, dict[str, str]]:
    """The class of every other pair, and of those named, each in both directions."""
    if value.says("none"):
        if gpus > 1:
            raise value.wrong(f"'none' is for one GPU, this profile has {gpus}; write all: CLASS")
        return None, {}
    if gpus == 1:
        raise value.wrong("one GPU has no pairs; write pairs: none")
    section = value.mapping()
    named: dict[str, str] = {}
    for key in section:
        name = section[key].text()
        if name not in classes:
            message = f"{quote(name)} is no class of this profile"
            raise section[key].wrong(f"{message}; {suggest(name, classes)}")
        if key != "all":
            named[str(_read_pair(section, key, gpus))] = name
    everything = section["all"].text() if "all" in section else None
    # A pair named in one direction alone is wired the same in the other.
    both = {"-".join(reversed(pair.split("-"))): name for pair, name in named.items()} | named
    for source, destination in permutations(range(gpus), 2):
        pair = str(Place.pair(source, destination))
        if everything is None and pair not in both:
            raise value.wrong(f"{pair} has no class; name it, or write all: CLASS")
    return everything, both


def _read_pair(section: Section, key: str, gpus: int) -> Place:
    try:
        place = parse_place(key)
    except CellError:
        raise section.wrong_key(key, "is no pair; write all or gpu0-gpu1") from None
    if not place.is_pair or place.gpus[0] == place.gpus[1]:
        raise section.wrong_key(key, "is no pair of two GPUs; write all or gpu0-gpu1")
    if max(place.gpus) >= gpus:
        message = f"is beyond this profile's {gpus} GPUs, gpu0 to gpu{gpus - 1}"
        raise section.wrong_key(key, message)
    return place


def _read_waiver(value: Value) -> Waiver:
    section = value.section(("cells", "owner", "reason", "until"))
    cells = section["cells"].text()
    if len(cells) > _LONGEST_PATTERN:
        raise section["cells"].wrong(f"longer than {_LONGEST_PATTERN} characters; no cell id is")
    return Waiver(
        cells=cells,
        owner=section["owner"].text(),
        reason=section["reason"].text(),
        until=section["until"].date(month_suffices=False),
        location=value.at,
    )
