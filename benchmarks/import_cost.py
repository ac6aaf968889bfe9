"""What the plugin costs a pytest run that uses nothing of it, in milliseconds.

    python benchmarks/import_cost.py [--runs 40]

Runs of `pytest` over one empty test, by turns with the plugin and with `-p no:gpuxfer`. The least
CPU time (user and system) of each kind counts: what else a machine does only ever adds to it.
Needs no GPU. Ends with status 1 where it is not below the promise.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

PROMISE_MS = 15.0
WITHOUT = ("-p", "no:gpuxfer")


def cpu_ms() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1e3


def run_ms(folder: Path, *options: str) -> float:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "."]
    before = cpu_ms()
    # An installed package has its bytecode; one in a checkout may be kept from writing it.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return cpu_ms() - before


def measure(runs: int) -> tuple[float, float]:
    """CPU milliseconds of a run with the plugin and of one without: the least of `runs` each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_nothing.py").write_text("def test_nothing():\n    pass\n")
        took = [(run_ms(folder), run_ms(folder, *WITHOUT)) for _ in range(runs)]
    return min(ours for ours, _ in took), min(bare for _, bare in took)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=40, metavar="N", help="pairs of runs")
    ours, bare = measure(parser.parse_args().runs)
    cost = ours - bare
    print(
        f"{cost:.1f} ms: {ours:.1f} with, {bare:.1f} without; promised: below {PROMISE_MS:.0f} ms"
    )
    return int(cost >= PROMISE_MS)


if __name__ == "__main__":
    sys.exit(main())
