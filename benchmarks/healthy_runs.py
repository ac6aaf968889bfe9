"""How often healthy machines are failed: runs on every simulated machine, each with its own noise.

    python benchmarks/healthy_runs.py [--runs 1000] [--cells 12] [--minutes 5]

Each run is another machine by turns, with another seed: copies differ as those of one H200 do
(0.04 to 0.1%), and in every second run all rates vary by 8% as well, as other tools see it. Of the
profile's cells each run takes some at random, and every 20th run of a machine one group of cells
that should be equal. Prints the red cells of each machine. Needs no GPU. Ends with status 1 where
one is red.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import islice

from pytest_gpuxfer import profiles
from pytest_gpuxfer.hardware.discovery import discover
from pytest_gpuxfer.hardware.simulated import machine_names, open_machine
from pytest_gpuxfer.model.expectation import Expectation, Profile
from pytest_gpuxfer.model.verdict import Outcome
from pytest_gpuxfer.run import Run
from pytest_gpuxfer.transfer.opening import Opened

NOISY_EVERY, GROUP_EVERY = 2, 20


@dataclass(frozen=True)
class Tally:
    """What one healthy run came to."""

    machine: str
    cells: int
    red: tuple[str, ...]
    degraded: tuple[str, ...]


@cache
def profile_of(machine: str) -> Profile:
    """The shipped profile that fits the machine."""
    return profiles.choose(discover(open_machine(machine, ()))).profile


def healthy_run(machine: str, seed: int, cells: int) -> Tally:
    """Judge some cells of the machine's plan; the same for the same seed."""
    hardware = open_machine(machine, ("noise",) if seed % NOISY_EVERY else (), seed)
    opened = Opened(hardware, discover(hardware))
    run = Run(opened, profile_of(machine), None, None, isolated=False, deadline_ns=None)
    for wanted in _some(run.plan, seed, cells):
        run.judge(wanted)
    run.finish(0)
    told = [
        (line.verdict.outcome, f"seed {seed} {line.cell}: {line.verdict.words}")
        for line in run.lines.values()
    ]
    red = tuple(words for outcome, words in told if outcome.red)
    degraded = tuple(words for outcome, words in told if outcome is Outcome.DEGRADED)
    return Tally(machine, len(told), red, degraded)


def _some(plan: tuple[Expectation, ...], seed: int, cells: int) -> list[Expectation]:
    """In the plan's order, for access is enabled once."""
    choice = random.Random(seed)
    judged = [wanted for wanted in plan if wanted.not_expected is None]
    alone = [wanted for wanted in judged if not wanted.members]
    chosen = choice.sample(alone, min(cells, len(alone)))
    groups = [wanted for wanted in judged if wanted.members]
    if groups and seed % GROUP_EVERY < NOISY_EVERY:
        chosen.append(choice.choice(groups))
    return [wanted for wanted in plan if wanted in chosen]


def _one(job: tuple[str, int, int]) -> Tally:
    return healthy_run(*job)


def _jobs(runs: int, cells: int) -> Iterator[tuple[str, int, int]]:
    names = machine_names()
    for number in range(runs):
        yield names[number % len(names)], number // len(names), cells


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000, metavar="N")
    parser.add_argument("--cells", type=int, default=12, metavar="N", help="cells of each run")
    parser.add_argument("--minutes", type=float, default=60.0, metavar="N", help="when to stop")
    asked = parser.parse_args()
    ends_at = time.monotonic() + 60 * asked.minutes
    jobs = _jobs(asked.runs, asked.cells)
    done: list[Tally] = []
    with ProcessPoolExecutor() as pool:
        while time.monotonic() < ends_at and (some := list(islice(jobs, 40))):
            done += pool.map(_one, some)
    for machine in machine_names():
        tallies = [tally for tally in done if tally.machine == machine]
        red = [words for tally in tallies for words in tally.red]
        degraded = [words for tally in tallies for words in tally.degraded]
        cells = sum(tally.cells for tally in tallies)
        print(
            f"{machine:18} {len(tallies):4} runs {cells:6} cells {len(red):3} red"
            f" {len(degraded):3} degraded"
        )
        for words in (*red, *degraded):
            print(f"    {words}")
    reds = sum(len(tally.red) for tally in done)
    print(f"{len(done)} of {asked.runs} healthy runs, {reds} red cells")
    return int(reds > 0)


if __name__ == "__main__":
    sys.exit(main())
