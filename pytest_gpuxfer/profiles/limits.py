"""The grammar of one entry of `limits:`, and of the figures in it."""

from __future__ import annotations

import re
from typing import Final

from pytest_gpuxfer.model import units
from pytest_gpuxfer.model.cell import CellError, Check, parse_check
from pytest_gpuxfer.model.expectation import (
    Bound,
    Limit,
    NvlinkSpec,
    PcieSpec,
    Source,
    SourceKind,
)
from pytest_gpuxfer.profiles.errors import quote, suggest
from pytest_gpuxfer.profiles.methods import METHODS
from pytest_gpuxfer.profiles.reader import Section, Value

KEYS: Final = (
    "on", "floor", "ceiling", "expect", "rate", "reason", "not_expected", "sizes", "tolerance",
    "below_because", "source",
)  # fmt: skip
_KINDS: Final = ("floor", "ceiling", "rate", "not_expected")  # each limit is one of these
_BELONGS: Final = {  # a key, and the kind of limit that it means something in
    "expect": "floor", "tolerance": "expect", "below_because": "floor", "reason": "rate",
}  # fmt: skip
DETAILS: Final = ("machines", "runs", "driver", "method")
_OF_LINK: Final = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?) ?% of (\S+)")
_OF_CHECK: Final = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,6})?) ?x (\S+)")


def read_limit(value: Value, nvlink: NvlinkSpec | None, pcie: PcieSpec | None) -> Limit:
    """One limit, its relative figures resolved against the declared links."""
    section = value.section(("check",), KEYS)
    kind = _kind(section)
    rates = {"nvlink": nvlink, "pcie": pcie}
    links = {name: spec.rate_bytes_per_s if spec else None for name, spec in rates.items()}
    source = section.get("source")
    if source is None and kind in ("floor", "ceiling"):
        raise section.wrong_key(kind, "a figure without its 'source'; say where it comes from")
    floor, expect = section.get("floor"), section.get("expect")
    return Limit(
        check=_read_check(section["check"]),
        location=section.at,
        on=_text(section, "on"),
        floor=_read_rate(floor, links) if floor else None,
        ceiling=_read_ceiling(section["ceiling"]) if kind == "ceiling" else None,
        expect=_read_rate(expect, links) if expect else None,
        sizes_bytes=section["sizes"].sizes_bytes() if "sizes" in section else None,
        tolerance=section["tolerance"].part() if "tolerance" in section else None,
        unlimited=_text(section, "reason"),
        not_expected=_text(section, "not_expected"),
        below_because=_text(section, "below_because"),
        source=_read_source(source) if source else None,
    )


def _text(section: Section, key: str) -> str | None:
    value = section.get(key)
    return value.text() if value else None


def _kind(section: Section) -> str:
    """Which of the four kinds of limit this is."""
    kinds = [key for key in _KINDS if key in section]
    if not kinds:
        message = "limits nothing; give it a floor, a ceiling, rate: unlimited or not_expected"
        raise section["check"].wrong(message)
    if len(kinds) > 1:
        message = f"cannot stand beside {kinds[0]!r} in one limit; write two limits"
        raise section.wrong_key(kinds[1], message)
    for key, owner in _BELONGS.items():
        if key in section and owner not in section:
            message = f"means something only beside {owner!r}; remove it or add {owner!r}"
            raise section.wrong_key(key, message)
    if kinds == ["rate"]:
        section["rate"].word(("unlimited",))
        if "reason" not in section:
            raise section.wrong_key("rate", "key 'reason' is missing; say why it is not judged")
    return kinds[0]


def _read_check(value: Value) -> Check:
    text = value.text()
    if text.startswith("machine."):
        raise value.wrong("checks of the machine itself carry no limits; see 'links' and 'gpus'")
    return _parse_check(value, text)


def _parse_check(value: Value, text: str) -> Check:
    method = text.split(".")[0]
    if method not in METHODS:
        raise value.wrong(f"no method is called {quote(method)}; {suggest(method, METHODS)}")
    try:
        return parse_check(text)
    except CellError as error:
        raise value.wrong(f"{error}; write method.engine.initiator.memory.no-access") from None


def _read_rate(value: Value, links: dict[str, float | None]) -> Bound:
    """A rate, a part of a declared link, or a multiple of another check."""
    text = value.text()
    if match := _OF_LINK.fullmatch(text):
        return _of_link(value, text, float(match[1]), match[2], links)
    if match := _OF_CHECK.fullmatch(text):
        return _of_check(value, text, float(match[1]), match[2])
    if "%" in text:
        raise value.wrong(f"{quote(text)}: a percentage of what? write '80% of nvlink'")
    return Bound(value.rate_bytes_per_s(), text, value.at)


def _of_link(
    value: Value, text: str, percent: float, name: str, links: dict[str, float | None]
) -> Bound:
    if name not in links:
        raise value.wrong(f"no link is called {quote(name)}; {suggest(name, links)}")
    rate = links[name]
    if rate is None:
        message = f"{quote(text)}, but this profile declares no {name}; write a rate in GB/s"
        raise value.wrong(message)
    if not percent:
        raise value.wrong(f"{quote(text)}: must be above 0")
    return Bound(rate * percent / 100, text, value.at)


def _of_check(value: Value, text: str, factor: float, name: str) -> Bound:
    if not factor:
        raise value.wrong(f"{quote(text)}: must be above 0")
    return Bound(factor, text, value.at, of_check=_parse_check(value, name))


def _read_ceiling(value: Value) -> Bound:
    text = value.text()
    if any(unit in text for unit in units.RATE_UNITS):
        raise value.wrong(f"{quote(text)} is a rate; a ceiling is a time like '6 us'")
    return Bound(value.duration_ns(), text, value.at)


def _read_source(value: Value) -> Source:
    loose = value.section(("kind", "where"), ("date", "provisional", *DETAILS))
    kind = loose["kind"].member(SourceKind)
    measured = kind is SourceKind.MEASURED
    required = ("kind", "where", "date", *DETAILS) if measured else ("kind", "where")
    section = value.section(required, ("provisional",) if measured else ("date", "provisional"))
    return Source(
        kind=kind,
        where=section["where"].text(),
        date=section["date"].date(month_suffices=True) if "date" in section else None,
        details={key: section[key].text() for key in DETAILS} if measured else {},
        provisional="provisional" in section and section["provisional"].truth(),
    )
