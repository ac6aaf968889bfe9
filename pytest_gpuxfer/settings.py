"""Options to one frozen value; the only place that reads pytest's options and ini keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pytest

AUTO: Final = "auto"
VISIBLE: Final = "visible"
_POLICIES: Final = ("pass", "fail")
_OFF: Final = "off"
_LOCK_FOLDER: Final = "/tmp"  # the same for all users: $TMPDIR is often a job's own
# Runs that print something and end, and runs that collect without judging.
_PRINTING: Final = ("help", "version", "markers")
_NOT_JUDGING: Final = ("collectonly", "showfixtures", "show_fixtures_per_test", "setupplan")


class SettingsError(Exception):
    """An option's value that cannot be; the message is one line."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator asked for."""

    hardware: str | None  # a profile's name or file, or AUTO; None: no limits
    simulated: str | None  # a simulated machine's name; None: this machine
    faults: tuple[str, ...]
    out: Path | None  # the folder that gets the record
    gpus: int | str | None  # a declared part of the machine: a count, or VISIBLE
    degraded_fails: bool
    isolate: bool | None  # measure in a process of its own; None: where that is of use
    deadline_ns: float | None  # of the whole run
    lock: Path | None  # the folder of the host's lock; None: take none
    selftest: bool  # spoil what is measured, and see every gate fail
    judges: bool  # False for --collect-only and the like
    prints_only: bool  # --help and the like: no hardware is touched
    distributed: bool  # pytest-xdist has workers, or this is one

    @property
    def asked(self) -> bool:
        """Whether a run is ours before any test asks for a fixture."""
        return any((self.hardware, self.simulated, self.faults, self.out, self.gpus))


def add_options(parser: pytest.Parser) -> None:
    """Every option defaults to None: only so does its ini twin count."""
    group = parser.getgroup("gpuxfer", "which way bytes travel between GPUs, and how fast")

    def option(name: str, metavar: str, text: str, action: str = "store") -> None:
        group.addoption(
            f"--gpuxfer-{name}", action=action, metavar=metavar, default=None, help=text
        )

    option(
        "hw",
        "NAME|FILE|auto",
        "Hardware profile that this machine must match, by name or file; auto picks the one that"
        " fits. Ini: gpuxfer_hw.",
    )
    option("sim", "MACHINE", "Measure a simulated machine instead of this one, e.g. dgx-a100.")
    option(
        "fault",
        "KIND[:WHERE]",
        "Break the simulated machine, e.g. link-down:gpu3/link7; may be given again.",
        action="append",
    )
    option("out", "DIR", "Folder for the record HOST-RUN.jsonl, made if missing. Ini: gpuxfer_out.")
    option(
        "gpus",
        "N|visible",
        "Declare that only N GPUs, or those visible, of the profile's machine are yours.",
    )
    option(
        "degraded",
        "pass|fail",
        "What becomes of a rate above its floor (GB/s) and below what is expected; pass unless"
        " told. Ini: gpuxfer_degraded.",
    )
    option(
        "isolate",
        "yes|no",
        "Measure the suites' cells in a process of its own, so that a hang or a crash costs its own"
        " cell only: yes unless told, but on healthy simulated machines.",
    )
    option(
        "deadline",
        "TIME",
        "When to stop measuring, after the start, e.g. 30min; the cells left are errors. Ini:"
        " gpuxfer_deadline.",
    )
    option(
        "lock",
        "DIR|off",
        "Where the lock lies that keeps two runs of a host apart; /tmp unless told. Ini:"
        " gpuxfer_lock.",
    )
    group.addoption(
        "--gpuxfer-selftest",
        action="store_true",
        default=None,
        help="Prove on this machine that each gate can fail, and measure nothing else: a copy with"
        " peer access off, a wrong bit, a raised floor (GB/s), a hidden GPU.",
    )
    parser.addini("gpuxfer_hw", "As --gpuxfer-hw.", default="")
    parser.addini("gpuxfer_out", "As --gpuxfer-out.", default="")
    parser.addini("gpuxfer_degraded", "As --gpuxfer-degraded.", default="")
    parser.addini("gpuxfer_deadline", "As --gpuxfer-deadline.", default="")
    parser.addini("gpuxfer_lock", "As --gpuxfer-lock.", default="")


def read_settings(config: pytest.Config) -> Settings:
    """The options and ini keys of this run. Raises SettingsError."""
    hardware, out = _value(config, "hw", ini=True), _value(config, "out", ini=True)
    if config.getoption("gpuxfer_gpus") is not None and hardware is None:
        raise SettingsError("--gpuxfer-gpus declares a part of a profile; add --gpuxfer-hw=NAME")
    selftest = bool(config.getoption("gpuxfer_selftest"))
    if selftest and hardware is None:
        raise SettingsError("--gpuxfer-selftest tries a profile's gates; add --gpuxfer-hw=NAME")
    return Settings(
        hardware=hardware,
        simulated=_value(config, "sim"),
        faults=_faults(config),
        out=None if out is None else config.invocation_params.dir / _folder(out),
        gpus=_gpus(_value(config, "gpus")),
        degraded_fails=_degraded(_value(config, "degraded", ini=True)) == "fail",
        isolate=_isolate(_value(config, "isolate")),
        deadline_ns=_deadline(_value(config, "deadline", ini=True)),
        lock=_lock(config),
        selftest=selftest,
        judges=not any(config.getoption(name, False) for name in _NOT_JUDGING),
        prints_only=any(config.getoption(name, False) for name in _PRINTING),
        distributed=hasattr(config, "workerinput")
        or bool(config.getoption("numprocesses", None))
        or config.getoption("dist", "no") != "no",
    )


def _value(config: pytest.Config, name: str, *, ini: bool = False) -> str | None:
    value: Any = config.getoption(f"gpuxfer_{name}")
    if value is None and ini:
        value = config.getini(f"gpuxfer_{name}") or None
    if value == "":
        raise SettingsError(f"--gpuxfer-{name} is empty; give it a value or leave it out")
    return None if value is None else str(value)


def _faults(config: pytest.Config) -> tuple[str, ...]:
    faults = tuple(config.getoption("gpuxfer_fault") or ())
    if faults and config.getoption("gpuxfer_sim") is None:
        raise SettingsError(
            "--gpuxfer-fault breaks simulated machines only; add --gpuxfer-sim=MACHINE"
        )
    return faults


def _folder(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~name, and nobody has that name
        raise SettingsError(f"--gpuxfer-out={text}: {error}; name another folder") from None


def _gpus(text: str | None) -> int | str | None:
    if text is None or text == VISIBLE:
        return text
    if not (text.isascii() and text.isdigit() and int(text)):
        raise SettingsError(f"--gpuxfer-gpus={text}: write a number of GPUs from 1 up, or visible")
    return int(text)


def _isolate(text: str | None) -> bool | None:
    if text not in (None, "yes", "no"):
        raise SettingsError(f"--gpuxfer-isolate={text}: write yes or no")
    return None if text is None else text == "yes"


def _deadline(text: str | None) -> float | None:
    if text is None:  # pytest runs that use none of ours do not pay for units
        return None
    from pytest_gpuxfer.model.units import UnitError, parse_duration

    try:
        return parse_duration(text)
    except UnitError as error:
        raise SettingsError(f"--gpuxfer-deadline: {error}") from None


def _lock(config: pytest.Config) -> Path | None:
    text = _value(config, "lock", ini=True)
    if text == _OFF or config.getoption("gpuxfer_sim") is not None:
        return None
    return config.invocation_params.dir / Path(text or _LOCK_FOLDER).expanduser()


def _degraded(text: str | None) -> str:
    if text is not None and text not in _POLICIES:
        raise SettingsError(f"--gpuxfer-degraded={text}: write pass or fail")
    return text or "pass"
