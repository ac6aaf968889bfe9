"""The gates themselves: with --gpuxfer-selftest each must fail on what it must not let through."""

from __future__ import annotations

from pytest_gpuxfer.instruments import TriedGate


def test_gate_fails_as_it_should(tried_gate: TriedGate) -> None:
    """What was measured on this machine, spoilt in one way, gets the verdict for that way."""
    tried_gate.require()
