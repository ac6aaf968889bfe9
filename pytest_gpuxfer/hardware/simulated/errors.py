"""What a person may have written wrong about a simulated machine."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


class SimulationError(Exception):
    """An unknown machine or fault, or a bad machine file; the message is one line."""


def unknown_name(what: str, name: str, valid: Sequence[str]) -> SimulationError:
    """The error for a name that is none of `valid`, with the nearest ones."""
    near = difflib.get_close_matches(name, valid)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return SimulationError(f"no {what} {name!r}: {hint}there are {', '.join(valid)}")
