"""Which profile a machine is held to, and whether the named one can be meant."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from pytest_gpuxfer.model.expectation import Profile
from pytest_gpuxfer.model.machine import Gpu, Machine
from pytest_gpuxfer.model.unknown import Unknown
from pytest_gpuxfer.profiles.errors import ProfileError
from pytest_gpuxfer.profiles.load import load, shipped


@dataclass(frozen=True, slots=True)
class Choice:
    """The profile that was picked for a machine, and why, on one line."""

    profile: Profile
    words: str


def choose(machine: Machine) -> Choice:
    """The one shipped profile that fits. Raises ProfileError where none does, or several."""
    if not machine.gpus:
        raise ProfileError("auto: no GPU is seen here, so none can be matched; name the profile")
    profiles = [load(name) for name in shipped()]
    misfits = {profile.name: _misfit(profile, machine) for profile in profiles}
    fitting = [profile for profile in profiles if misfits[profile.name] is None]
    here = _describe(machine)
    if not fitting:
        why = "; ".join(f"{name}: {reason}" for name, reason in misfits.items())
        raise ProfileError(f"auto: no profile fits {here}: {why}; write one, or name one")
    if len(fitting) > 1:
        names = ", ".join(profile.name for profile in fitting)
        raise ProfileError(f"auto: {names} all fit {here}; name one of them")
    words = f"{fitting[0].name}: it alone fits {here} ({_describe_nvlinks(machine)})"
    return Choice(fitting[0], words)


def check_match(profile: Profile, machine: Machine) -> None:
    """Raises ProfileError where the profile is for another product, or for fewer GPUs.

    GPUs that are missing, or all of them, are no mismatch: they are an `absent` cell.
    """
    if not _is_product(profile, machine):
        theirs = " or ".join(profile.match_gpus)
        message = f"profile {profile.name} is for {theirs}, this machine has {_describe(machine)}"
        raise ProfileError(f"{message}; {_advise(machine)}")
    if not profile.partial and (surplus := _surplus(profile, machine)):
        message = f"profile {profile.name} is {surplus}: some would not be judged"
        raise ProfileError(f"{message}; {_advise(machine)}")


def declare_partial(profile: Profile, gpus: int | None) -> Profile:
    """The profile of a declared part of its machine; None declares nothing.

    Raises ProfileError for a part larger than the whole, or none of it.
    """
    if gpus is None or gpus == profile.gpus:
        return profile
    if gpus < 1:
        raise ProfileError(f"a part of {gpus} GPUs; declare at least 1")
    if gpus > profile.gpus:
        message = f"{gpus} GPUs are declared, profile {profile.name} has {profile.gpus}"
        raise ProfileError(f"{message}; declare at most {profile.gpus}")
    return replace(profile, gpus=gpus, partial=f"{gpus} of {profile.gpus} GPUs, as declared")


def _advise(machine: Machine) -> str:
    fitting = [name for name in shipped() if _misfit(load(name), machine) is None]
    if not fitting:
        return "no shipped profile fits it; write one and give its path"
    names = " or ".join(f"--gpuxfer-hw={name}" for name in fitting)
    return f"try {names} or auto" if len(fitting) == 1 else f"try {names}"


def _misfit(profile: Profile, machine: Machine) -> str | None:
    """Why the profile is not this machine's, or None where it may be."""
    if not _is_product(profile, machine):
        return f"for {' or '.join(profile.match_gpus)}"
    return _surplus(profile, machine) or _other_form(profile, machine)


def _is_product(profile: Profile, machine: Machine) -> bool:
    return all(gpu.name in profile.match_gpus for gpu in machine.gpus)


def _surplus(profile: Profile, machine: Machine) -> str | None:
    if len(machine.gpus) <= profile.gpus:
        return None
    return f"for {profile.gpus} GPU{'s' * (profile.gpus > 1)}, and {len(machine.gpus)} are here"


def _other_form(profile: Profile, machine: Machine) -> str | None:
    """By NVLink: a profile with it wants ports, up or down; one without wants none that is up."""
    states = [_nvlinks(gpu) for gpu in machine.gpus]
    if unknown := next((state for state in states if isinstance(state, Unknown)), None):
        return f"whether there is NVLink is {unknown}"
    if profile.nvlink and not any(ports for ports, _ in _known(states)):
        return "for GPUs with NVLink, and none is seen here"
    if not profile.nvlink and any(up for _, up in _known(states)):
        return "for GPUs without NVLink, and some is up here"
    return None


def _nvlinks(gpu: Gpu) -> tuple[int, int] | Unknown:
    """How many NVLink ports the GPU has, and how many of them are not known to be down."""
    if isinstance(gpu.nvlinks, Unknown):
        return gpu.nvlinks
    return len(gpu.nvlinks), sum(1 for port in gpu.nvlinks if port.active is not False)


def _known(states: list[tuple[int, int] | Unknown]) -> list[tuple[int, int]]:
    return [state for state in states if not isinstance(state, Unknown)]


def _describe(machine: Machine) -> str:
    """The products: 8 x NVIDIA H200."""
    counts = Counter(gpu.name for gpu in machine.gpus)
    return " and ".join(f"{count} x {name}" for name, count in counts.items())


def _describe_nvlinks(machine: Machine) -> str:
    ports = sum(count for count, _ in _known([_nvlinks(gpu) for gpu in machine.gpus]))
    return f"{ports} NVLink ports" if ports else "no NVLink"
