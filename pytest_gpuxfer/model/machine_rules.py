"""The rules for what a machine is: its GPUs' links, what its kernels hear of each other. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

from pytest_gpuxfer.model import units
from pytest_gpuxfer.model.expectation import Expectation
from pytest_gpuxfer.model.machine import NvlinkPort
from pytest_gpuxfer.model.measurement import Reading
from pytest_gpuxfer.model.outcome import Case, Outcome, Reason, Verdict
from pytest_gpuxfer.model.statistics import OUTLIER_DEVIATIONS, OUTLIER_PART, outliers
from pytest_gpuxfer.model.unknown import Unknown

FEWEST_EQUALS: Final = 4  # fewer have no outlier
_TOLD: Final = 4
_JOINED: Final = ("completed", "not supported")  # there is none of GPUs before Hopper


def out_of_fabric(case: Case) -> Verdict | None:
    """A GPU that has not joined the fabric: its links may be up and yet carry nothing."""
    fabric = case.measurement.reading.fabric if case.measurement.reading else None
    if fabric is None or isinstance(fabric, Unknown) or fabric in _JOINED:
        return None
    words = f"the fabric state is: {fabric}"
    return Verdict(Outcome.FAIL, Reason.OUT_OF_FABRIC, words)


def links_short(case: Case) -> Verdict | None:
    """NVLinks and the PCIe link short of what the profile declares (rule 4)."""
    reading, wanted = case.measurement.reading, case.expectation
    if reading is None:
        return None
    if wanted.nvlink is not None and reading.nvlinks is not None:
        if isinstance(reading.nvlinks, Unknown):
            words = f"NVLinks: {reading.nvlinks}"
            return Verdict(Outcome.INCONCLUSIVE, Reason.NOT_READABLE, words)
        return _nvlinks_short(reading.nvlinks, wanted)
    if wanted.pcie is not None and reading.pcie_under_load is not None:
        link = reading.pcie_under_load
        asked = {"generation": wanted.pcie.generation, "width": wanted.pcie.width}
        seen = {"generation": link.generation, "width": link.width}
        for name, value in seen.items():
            if not isinstance(value, Unknown) and value < asked[name]:
                words = f"PCIe {name} {value} under load, the profile asks for {asked[name]}"
                return Verdict(Outcome.FAIL, Reason.PCIE_SHORT, words)
    return None


def _nvlinks_short(ports: tuple[NvlinkPort, ...], wanted: Expectation) -> Verdict | None:
    assert wanted.nvlink is not None
    up = sum(1 for port in ports if port.active is True)
    down = [str(port.link) for port in ports if port.active is False]
    unread = [str(port.link) for port in ports if isinstance(port.active, Unknown)]
    if up < wanted.nvlink.links and up + len(unread) >= wanted.nvlink.links:
        words = f"state of NVLink {', '.join(unread)} not readable, {up} are up"
        return Verdict(Outcome.INCONCLUSIVE, Reason.NOT_READABLE, words)
    if up < wanted.nvlink.links:
        which = f" (down: link {', '.join(down)})" if down else ""
        words = f"{up} of {wanted.nvlink.links} NVLinks are up{which}"
        return Verdict(Outcome.FAIL, Reason.LINKS_SHORT, words)
    for port in ports:
        generation = port.generation
        if not isinstance(generation, Unknown) and generation < wanted.nvlink.generation:
            words = f"NVLink {port.link} is of generation {generation}"
            return Verdict(Outcome.FAIL, Reason.LINKS_SHORT, words)
        rate = port.rate_bytes_per_s
        if not isinstance(rate, Unknown) and not rate >= wanted.nvlink.per_link_bytes_per_s:
            words = f"NVLink {port.link} runs at {units.format_rate(rate)}"
            return Verdict(Outcome.FAIL, Reason.LINKS_SHORT, words)
    return None


def kernels_not_heard(case: Case) -> Verdict | None:
    """Flags or atomic additions between running kernels that did not arrive."""
    reading = case.measurement.reading
    if reading is None:
        return None
    for count, what in ((reading.answered, "rounds of flags"), (reading.added, "atomic additions")):
        if count is not None and count.seen != count.asked:
            words = f"{count.seen} of {count.asked} {what} arrived"
            return Verdict(Outcome.FAIL, Reason.KERNELS_NOT_HEARD, words)
    return None


def uneven(case: Case) -> Verdict | None:
    """Outliers among cells that should be equal, though each clears its floor."""
    reading = case.measurement.reading
    if reading is None or reading.medians is None or not case.expectation.cell.check.of_group:
        return None
    medians, wanted = reading.medians, len(case.expectation.members)
    if len(medians) < FEWEST_EQUALS or len(medians) < wanted / 2:
        words = f"{len(medians)} of {wanted} cells have a figure: nothing to compare"
        return Verdict(Outcome.INCONCLUSIVE, Reason.NOT_READABLE, words)
    if not all(0 < rate < math.inf for rate in medians.values()):
        words = "a cell's figure is no rate: nothing to compare"
        return Verdict(Outcome.INCONCLUSIVE, Reason.NOT_READABLE, words)
    beyond = outliers(medians)
    middle = units.format_rate(median(medians.values()))
    if not beyond:
        return Verdict(Outcome.PASS, Reason.INSIDE, f"{len(medians)} cells about {middle}")
    told = [f"{place} {units.format_rate(medians[place])}" for place in beyond[:_TOLD]]
    more = f" and {len(beyond) - _TOLD} more" if len(beyond) > _TOLD else ""
    words = (
        f"{', '.join(told)}{more} against a median of {middle}: beyond {OUTLIER_PART:.0%} and"
        f" {OUTLIER_DEVIATIONS:g} median deviations{_shared(beyond)}"
    )
    return Verdict(Outcome.DEGRADED, Reason.OUTLIER, words)


def _shared(places: Sequence[str]) -> str:
    """What all outliers have in common, where several do: their source, destination or GPU."""
    pairs = [place.split("-") for place in places]
    if len(pairs) < 2 or any(len(pair) != 2 for pair in pairs):
        return ""
    for side, what in ((0, "source"), (1, "destination")):
        if len({pair[side] for pair in pairs}) == 1:
            return f"; all with {pairs[0][side]} as {what}"
    common = set.intersection(*(set(pair) for pair in pairs))
    return f"; all of {common.pop()}" if common else ""


def machine_check_done(case: Case) -> Verdict | None:
    """A check of the machine itself has no rate: what it asked for was found, or not read."""
    if not case.expectation.cell.check.of_machine:
        return None
    reading = case.measurement.reading
    if reading is None:
        unproven = [s for s in case.measurement.access if isinstance(s.proven, Unknown)]
        if unproven or not case.measurement.access:
            words = "; ".join(map(str, unproven)) or "nothing was read"
            return Verdict(Outcome.INCONCLUSIVE, Reason.NOT_READABLE, words)
        words = "; ".join(map(str, case.measurement.access))
        return Verdict(Outcome.PASS, Reason.INSIDE, words)
    if _empty(reading):
        return Verdict(Outcome.INCONCLUSIVE, Reason.NOT_READABLE, "nothing was read")
    link = reading.pcie_under_load
    if link is not None and (
        isinstance(link.generation, Unknown) or isinstance(link.width, Unknown)
    ):
        # Virtual machines hide these: nothing to pass, nothing to fail; the rate is judged apart.
        words = f"PCIe link under load: generation {link.generation}, width {link.width}"
        return Verdict(Outcome.NOT_EXPECTED, Reason.NOT_READABLE, words, (words,))
    return Verdict(Outcome.PASS, Reason.INSIDE, _describe_reading(case), _nvlinks_unread(reading))


def _empty(reading: Reading) -> bool:
    """Whether there is nothing in it that could be as it should be."""
    counts = [count for count in (reading.answered, reading.added) if count is not None]
    if counts:
        return any(count.asked <= 0 for count in counts)
    nvlinks = () if isinstance(reading.nvlinks, Unknown) else reading.nvlinks
    return not reading.gpus and not nvlinks and reading.pcie_under_load is None


def _nvlinks_unread(reading: Reading) -> tuple[str, ...]:
    """What a profile declares of NVLinks and these did not tell, though they are up."""
    ports = () if isinstance(reading.nvlinks, Unknown) else reading.nvlinks or ()
    unread = {
        f"NVLink {name}: {value}"
        for port in ports
        if port.active is True
        for name, value in (("generation", port.generation), ("rate", port.rate_bytes_per_s))
        if isinstance(value, Unknown)
    }
    return tuple(sorted(unread))


def _describe_reading(case: Case) -> str:
    reading = case.measurement.reading
    assert reading is not None
    if reading.gpus is not None:
        return f"{len(reading.gpus)} GPUs"
    if reading.pcie_under_load is not None:
        link = reading.pcie_under_load
        return f"PCIe Gen{link.generation} x{link.width} under load"
    for count, what in ((reading.answered, "rounds of flags"), (reading.added, "atomic additions")):
        if count is not None:
            return f"{count.seen} {what} arrived"
    ports = () if isinstance(reading.nvlinks, Unknown) else reading.nvlinks or ()
    return f"{sum(1 for port in ports if port.active is True)} NVLinks up"
