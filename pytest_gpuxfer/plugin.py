"""Pytest's entry. It is imported in every pytest run: nothing heavy until ours is asked for."""

from __future__ import annotations

import pytest

from pytest_gpuxfer.settings import SettingsError, add_options, read_settings

pytest_plugins = ("pytest_gpuxfer.fixtures",)

_PARAMETERS = frozenset({"cell", "gpuxfer_gate", "gpuxfer_gpu", "gpuxfer_gpu_pair"})


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options and their ini twins."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Open the run where an option asks for it; the operator's mistakes end here, as status 4."""
    config.addinivalue_line(
        "markers", "gpuxfer(*methods): the methods whose cells a test judges, one test each"
    )
    config.addinivalue_line(
        "markers", 'gpuxfer_size(text): how large the buffers of a test are, e.g. "256 MiB"'
    )
    try:
        settings = read_settings(config)
    except SettingsError as error:
        raise pytest.UsageError(str(error)) from None
    if settings.asked and not settings.prints_only:
        from pytest_gpuxfer.session import start

        start(config, settings)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test its cells, GPUs and pairs, if it asks for any."""
    if not _PARAMETERS.isdisjoint(metafunc.fixturenames):
        from pytest_gpuxfer.parameters import parametrize

        parametrize(metafunc)
