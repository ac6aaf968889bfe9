"""From what the witnesses of a path say to the path. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuxfer.model.measurement import PathKind, Signal, SignalName
from pytest_gpuxfer.model.unknown import Unknown


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The paths that every witness agrees with, or why there is no such path."""

    paths: tuple[PathKind, ...] | Unknown

    def proves(self, path: PathKind) -> bool:
        return self.paths == (path,)

    def excludes(self, path: PathKind) -> bool:
        return not isinstance(self.paths, Unknown) and path not in self.paths

    def __str__(self) -> str:
        return str(self.paths) if isinstance(self.paths, Unknown) else " or ".join(self.paths)


def conclude(signals: Sequence[Signal]) -> Conclusion:
    """What remains when every witness that saw something is believed at once."""
    left = tuple(PathKind)
    spoke = [signal for signal in signals if not isinstance(signal.agrees_with, Unknown)]
    for signal in spoke:
        assert not isinstance(signal.agrees_with, Unknown)
        left = tuple(path for path in left if path in signal.agrees_with)
    if not spoke:
        return Conclusion(Unknown("no witness of the path could be read"))
    if not left:
        words = "; ".join(f"{signal.name}: {signal.words}" for signal in spoke)
        return Conclusion(Unknown(f"the witnesses disagree: {words}"))
    return Conclusion(left)


def silent(signals: Sequence[Signal], proof: Sequence[SignalName]) -> tuple[str, ...]:
    """The witnesses that `proof` asks for and that saw nothing, each with the reason."""
    missing: list[str] = []
    for name in proof:
        seen = [signal.agrees_with for signal in signals if signal.name is name]
        if not seen:
            missing.append(f"{name}: not read")
        # Of several, one that saw nothing is enough to doubt.
        missing += [f"{name}: {paths.reason}" for paths in seen if isinstance(paths, Unknown)]
    return tuple(missing)
