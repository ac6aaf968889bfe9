"""docs/profiles.md is true: its examples load, every key is there, its messages are the real."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_gpuxfer import profiles
from pytest_gpuxfer.profiles import ProfileError, grammar, limits
from pytest_gpuxfer.transfer import methods

TEXT = (Path(__file__).parents[2] / "docs" / "profiles.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
KEYS = (*grammar.REQUIRED_KEYS, *grammar.OPTIONAL_KEYS, *limits.KEYS, *limits.DETAILS)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 2


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_loads(tmp_path: Path, example: str) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(example)
    assert profiles.load(str(path)).limits


@pytest.mark.parametrize("key", sorted(set(KEYS)))
def test_a_key_is_explained(key: str) -> None:
    assert f"`{key}`" in TEXT


@pytest.mark.parametrize("name", profiles.shipped())
def test_a_shipped_profile_is_listed(name: str) -> None:
    assert f"| `{name}` |" in TEXT


@pytest.mark.parametrize("method", [method.name for method in methods.ALL])
def test_a_method_is_explained(method: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
    assert f"`{method}" in page


# Each message of the page, and the slip in a sound file that brings it about.
SLIPS = {
    "key 'flor' is not known; did you mean 'floor'?": ("floor:", "flor:"),
    "'394' is no rate: the unit is missing; use one of": ("394 GB/s", "394"),
    "expect '500 GB/s' is above the declared nvlink, 450.0 GB/s: no machine can meet it": (
        "394 GB/s", "500 GB/s",
    ),
    "floor '100 GB/s' is below 40% of the declared nvlink, 450.0 GB/s: a sick machine would pass;"
    " raise it": ("370 GB/s", "100 GB/s"),
}  # fmt: skip


@pytest.mark.parametrize("message", SLIPS)
def test_a_message_of_the_page_is_the_one_that_is_told(tmp_path: Path, message: str) -> None:
    assert message in TEXT
    path = tmp_path / "example.yaml"
    path.write_text(EXAMPLES[0].replace(*SLIPS[message]))
    with pytest.raises(ProfileError) as caught:
        profiles.load(str(path))
    assert message in str(caught.value)
