"""Prints every figure of the kept records beside the simulated machine's."""

from __future__ import annotations

from statistics import median

from tests.records import NEAR, figures


def main() -> None:
    found = figures()
    for figure in found:
        low, high, ours = min(figure.real), max(figure.real), median(figure.simulated)
        off = f"{figure.off:+.1%}" if figure.off else ""
        print(f"{figure.name:<44} {low:>9.4g} to {high:>9.4g} {ours:>9.4g} {figure.unit:<5}{off}")
    near = sum(abs(figure.off) <= NEAR for figure in found)
    print(f"{near} of {len(found)} figures within {NEAR:.0%} of what real GPUs showed")


if __name__ == "__main__":
    main()
