"""Loading: each mistake is one line that says where, what and how to put it right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pytest_gpuxfer import profiles
from pytest_gpuxfer.model.cell import Place, parse_cell
from pytest_gpuxfer.model.expectation import Limit, Profile, SourceKind
from pytest_gpuxfer.model.measurement import PathKind, SignalName
from pytest_gpuxfer.profiles import ProfileError

BASE = """\
schema: 1
name: ours
title: Two GPUs of ours
match: {gpus: [NVIDIA H200]}
gpus: 2
links:
  nvlink: {generation: 4, links: 18, per_link: 25 GB/s}
  pcie: {generation: 5, width: 16}
classes:
  NV18: {path: nvlink, peer_access: required, proof: [counters]}
pairs:
  all: NV18
tolerance: 5%
limits:
  - check: peer_copy
    floor: 80% of nvlink
    expect: 394 GB/s
    sizes: 64 MiB to 1 GiB
    source: {kind: derived, where: by hand}
  - check: host_relay
    rate: unlimited
    reason: not ours to judge
waivers:
  - {cells: "peer_copy*/gpu0-*", owner: ops, reason: spare part ordered, until: 2026-12-31}
"""


def _line(text: str, words: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if words in line)


def _load(tmp_path: Path, text: str, name: str = "ours.yaml") -> Profile:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return profiles.load(str(path))


def _limit(profile: Profile, cell: str) -> Limit:
    limit = profile.limit_for(parse_cell(cell))
    assert limit is not None
    return limit


def _complaint(tmp_path: Path, data: bytes | str) -> str:
    """What load says of a file, from its name on."""
    path = tmp_path / "ours.yaml"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    with pytest.raises(ProfileError) as caught:
        profiles.load(str(path))
    text = str(caught.value)
    assert text.isprintable()  # one line, nothing that moves the cursor
    return text.removeprefix(f"{tmp_path}/")


def test_a_profile_is_resolved_and_keeps_where_each_figure_stands(tmp_path: Path) -> None:
    profile = _load(tmp_path, BASE)
    limit = _limit(profile, "peer_copy.write/gpu0-gpu1/512MiB")
    assert limit.floor is not None
    assert limit.expect is not None
    assert limit.floor.value == pytest.approx(360e9)
    assert limit.floor.text == "80% of nvlink"
    assert limit.floor.location.line == _line(BASE, "floor: 80%")
    assert limit.floor.location.column == 12
    assert limit.expect.value == pytest.approx(394e9)
    assert limit.sizes_bytes == (64 * 2**20, 2**30)
    assert limit.source is not None
    assert limit.source.kind is SourceKind.DERIVED
    assert limit.location.file == str(tmp_path / "ours.yaml")
    spec = profile.class_of(Place.pair(1, 0))
    assert spec is not None
    assert (spec.path, spec.proof) == (PathKind.NVLINK, (SignalName.COUNTERS,))
    assert spec.peer_access_required
    assert profile.tolerance == pytest.approx(0.05)
    assert profile.waivers[0].until == "2026-12-31"
    assert profile.limit_for(parse_cell("peer_copy.write/gpu0-gpu1/1MiB")) is None
    assert _limit(profile, "host_relay/gpu0-gpu1/512MiB").unlimited == "not ours to judge"


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("title: Two", "titel: Two", "3:1", "did you mean 'title'?"),
        ("    floor: 80%", "    flor: 80%", "16:5", "did you mean 'floor'?"),
        ("title: Two GPUs of ours\n", "", "1:1", "key 'title' is missing"),
        ("schema: 1", "schema: 2", "1:9", "schema 1 alone"),
        ("schema: 1\n", "", "1:1", "key 'schema' is missing"),
        ("gpus: 2", "gpus: 2\ngpus: 3", "6:1", "stands twice, first in line 5"),
        ("394 GB/s", "394", "17:13", "the unit is missing"),
        ("394 GB/s", "394 Gbit", "17:13", "unit 'Gbit' is not known"),
        ("394 GB/s", "1e3 GB/s", "17:13", "write it like '240 GB/s'"),
        ("394 GB/s", "nan GB/s", "17:13", "write it like '240 GB/s'"),
        ("394 GB/s", ".inf", "17:13", "write it like '240 GB/s'"),
        ("394 GB/s", "9" * 39 + " GB/s", "17:13", "too long"),
        ("80% of nvlink", "0 GB/s", "16:12", "must be above 0"),
        ("80% of nvlink", "0% of nvlink", "16:12", "must be above 0"),
        ("80% of nvlink", "80%", "16:12", "80% of nvlink"),
        ("80% of nvlink", "80% of nvlnk", "16:12", "did you mean 'nvlink'?"),
        ("80% of nvlink", "3x host_rellay", "16:12", "did you mean 'host_relay'?"),
        ("80% of nvlink", "[1]", "16:12", "a list where text belongs"),
        ("floor: 80% of nvlink", "floor:", "16:11", "the value is missing"),
        ("gpus: 2", "gpus: two", "5:7", "no whole number from 1"),
        ("gpus: 2", "gpus: 0", "5:7", "no whole number from 1"),
        ("gpus: 2", "gpus: " + "9" * 5000, "5:7", "no whole number from 1"),
        ("gpus: 2", "gpus: [2]", "5:7", "a list where text belongs"),
        ("[NVIDIA H200]", "NVIDIA H200", "4:15", "a list belongs"),
        ("[NVIDIA H200]", "[]", "4:15", "the list is empty"),
        ("{gpus: [NVIDIA H200]}", "all", "4:8", "a mapping belongs"),
        ("generation: 5", "generation: 7", "8:22", "from 1 to 6"),
        ("width: 16", "width: 3", "8:32", "known here"),
        ("path: nvlink", "path: nvlnk", "10:16", "did you mean 'nvlink'?"),
        ("peer_access: required", "peer_access: yes", "10:37", "optional, required"),
        ("[counters]", "[counter]", "10:55", "did you mean 'counters'?"),
        ("  NV18: {", "  NVL18: {", "10:3", "is no link class"),
        ("links: 18", "links: 12", "10:3", "has more links than each GPU, which has 12"),
        ("all: NV18", "all: NV12", "12:8", "did you mean 'NV18'?"),
        ("all: NV18", "gpu0-gpu2: NV18", "12:3", "beyond this profile's 2 GPUs"),
        ("all: NV18", "gpu0: NV18", "12:3", "no pair of two GPUs"),
        ("all: NV18", "everyone: NV18", "12:3", "write all or gpu0-gpu1"),
        ("\n  all: NV18", " none", "11:8", "'none' is for one GPU"),
        ("tolerance: 5%", "tolerance: 5", "13:12", "write it like '5%'"),
        ("tolerance: 5%", "tolerance: 100%", "13:12", "below 100%"),
        ("check: peer_copy", "check: peer_cpy", "15:12", "did you mean 'peer_copy'?"),
        ("check: peer_copy", "check: peer_copy.fast", "15:12", "'fast' is no engine"),
        ("check: peer_copy", "check: machine.nvlink", "15:12", "carry no limits"),
        ("64 MiB to 1 GiB", "1 GiB to 64 MiB", "18:12", "runs backwards"),
        ("64 MiB to 1 GiB", "64 to 1 GiB", "18:12", "the unit is missing"),
        ("kind: derived", "kind: guess", "19:20", "derived, measured, published"),
        ("kind: derived", "kind: measured", "19:13", "key 'date' is missing"),
        ("where: by hand", "where: x, date: 2026-13", "19:45", "not in the calendar"),
        ("where: by hand", "where: x, date: soon", "19:45", "YYYY-MM or YYYY-MM-DD"),
        ("    source: {kind: derived, where: by hand}\n", "", "16:5", "without its 'source'"),
        ("    expect: 394", "    ceiling: 6 us\n    expect: 394", "17:5", "write two limits"),
        ("    floor: 80% of nvlink\n", "", "15:12", "limits nothing"),
        ("    reason: not ours to judge\n", "", "21:5", "key 'reason' is missing"),
        ("rate: unlimited", "rate: any", "21:11", "known here: unlimited"),
        ("rate: unlimited", "not_expected: gone", "22:5", "only beside 'rate'"),
        ("until: 2026-12-31", "until: 2026-12", "24:81", "write YYYY-MM-DD"),
        ("owner: ops, ", "", "24:5", "key 'owner' is missing"),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_told_with_its_place(
    tmp_path: Path, old: str, new: str, place: str, words: str
) -> None:
    assert BASE.count(old) >= 1
    text = _complaint(tmp_path, BASE.replace(old, new, 1))
    assert text.startswith(f"ours.yaml:{place}: ")
    assert words in text


@pytest.mark.parametrize(
    ("data", "place", "words"),
    [
        (b"", "1:1", "the file is empty"),
        (b"# only a comment\n", "1:1", "the file is empty"),
        (b"- a list\n", "1:1", "no mapping"),
        (b"schema: 1\nname: \xff\n", "2:7", "not UTF-8"),
        (b"schema: 1\nname: \x07\n", "2:7", "a character that YAML does not allow"),
        (b"schema: 1\nmatch:\n\tgpus: [x]\n", "3:1", "a tab; indent with spaces"),
        (b"schema: 1\n name: ours\n", "2:6", "not readable as YAML"),
        (b"schema: [1\n", "2:1", "not readable as YAML"),
        (b"schema: 1\n---\nschema: 1\n", "2:1", "one profile a file"),
        (b"schema: 1\nname: &x ours\ntitle: *x\n", "2:7", "an anchor (&x)"),
        (b"schema: 1\nname: *x\n", "2:7", "an alias (*x)"),
        (b"schema: !!int 1\n", "1:9", "a tag"),
        (b"? [a]\n: 1\n", "1:3", "a key that is no text"),
        (b"<<: {schema: 1}\n", "1:1", "key '<<' is not known"),
        (b"schema: 1\ntitle: " + b"[" * 100_000, "2:19", "nested more than 12 deep"),
        (b"schema: 1\n" + b"#" * 300_000, "1:1", "larger than 256 KiB"),
    ],
)
def test_what_is_no_strict_yaml_is_told_with_its_place(
    tmp_path: Path, data: bytes, place: str, words: str
) -> None:
    text = _complaint(tmp_path, data)
    assert text.startswith(f"ours.yaml:{place}: ")
    assert words in text


def test_relative_figures_need_the_link_that_they_name(tmp_path: Path) -> None:
    text = BASE.replace("{generation: 5, width: 16}", "none").replace("of nvlink", "of pcie")
    assert "declares no pcie" in _complaint(tmp_path, text)


def test_a_multiple_of_another_check_waits_for_its_figure(tmp_path: Path) -> None:
    profile = _load(tmp_path, BASE.replace("80% of nvlink", "3x host_relay"))
    floor = _limit(profile, "peer_copy.read/gpu1-gpu0/64MiB").floor
    assert floor is not None
    assert floor.of_check is not None
    assert floor.resolve({floor.of_check: 20e9}) == pytest.approx(60e9)
    assert floor.resolve({}) is None


def test_every_pair_has_a_class_or_the_file_is_wrong(tmp_path: Path) -> None:
    three = BASE.replace("gpus: 2", "gpus: 3")
    text = _complaint(tmp_path, three.replace("all: NV18", "gpu0-gpu1: NV18"))
    assert "gpu0-gpu2 has no class" in text


def test_a_named_pair_holds_in_both_directions(tmp_path: Path) -> None:
    text = BASE.replace("pairs:", "  SYS: {path: staged, peer_access: optional, proof: [enqueue]}\n"
                        "pairs:\n  gpu1-gpu0: SYS")  # fmt: skip
    text = text.replace("gpus: 2", "gpus: 3").replace(
        "- check: peer_copy", "- on: NV18\n    check: peer_copy"
    )
    profile = _load(tmp_path, text)
    classes = [profile.class_of(Place.pair(*pair)) for pair in ((0, 1), (1, 0), (0, 2))]
    assert [spec.name for spec in classes if spec] == ["SYS", "SYS", "NV18"]
    assert profile.limit_for(parse_cell("peer_copy.write/gpu0-gpu1/512MiB")) is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.mkdir(), "a directory"),
        (lambda _path: None, "no such file; shipped profiles: a100-nvlink"),
        (lambda path: os.mkfifo(path), "no regular file"),
    ],
)
def test_a_path_that_is_no_file_is_told(tmp_path: Path, make: object, words: str) -> None:
    assert callable(make)
    make(tmp_path / "ours.yaml")
    with pytest.raises(ProfileError, match=words):
        profiles.load(f"{tmp_path}/ours.yaml")


def test_a_file_that_may_not_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ours.yaml").write_text(BASE)

    def refuse(*_args: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ProfileError, match=r"ours\.yaml: cannot be read: Permission denied"):
        profiles.load(f"{tmp_path}/ours.yaml")


@pytest.mark.parametrize("name", ["h200-nvlnk", "H200-nvlink", "h200_nvlink"])
def test_an_unknown_name_tells_the_nearest_and_all(name: str) -> None:
    with pytest.raises(ProfileError) as caught:
        profiles.load(name)
    text = str(caught.value)
    assert "did you mean 'h200-nvlink'?" in text
    assert all(known in text for known in profiles.shipped())


@pytest.mark.parametrize("name", ["", "\0", "a\nb", "x" * 5000, "/\0.yaml", "x" * 5000 + ".yaml"])
def test_no_name_is_too_odd_for_one_line(name: str) -> None:
    with pytest.raises(ProfileError) as caught:
        profiles.load(name)
    assert str(caught.value).isprintable()


CHILD = """\
schema: 1
name: child
extends: ours.yaml
limits:
  - check: peer_copy
    floor: 370 GB/s
    sizes: 64 MiB to 1 GiB
    source: {kind: derived, where: stricter here}
"""


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    (tmp_path / "ours.yaml").write_text(BASE)
    return tmp_path


def test_a_childs_limit_wins_though_its_line_comes_earlier(parent: Path) -> None:
    profile = _load(parent, CHILD, "child.yaml")
    floor = _limit(profile, "peer_copy.write/gpu0-gpu1/512MiB").floor
    assert floor is not None
    assert floor.value == pytest.approx(370e9)
    assert str(floor.location) == f"{parent}/child.yaml:6"
    relay = _limit(profile, "host_relay/gpu0-gpu1/512MiB")
    assert str(relay.location) == f"{parent}/ours.yaml:{_line(BASE, 'check: host_relay')}"
    assert (profile.name, profile.title) == ("child", "Two GPUs of ours")
    assert profile.file == f"{parent}/child.yaml"


def test_a_parents_limit_that_is_more_specific_stays(parent: Path) -> None:
    (parent / "ours.yaml").write_text(BASE.replace("check: peer_copy", "check: peer_copy.read"))
    profile = _load(parent, CHILD, "child.yaml")
    floors = [
        _limit(profile, f"peer_copy.{way}/gpu0-gpu1/512MiB").floor for way in ("read", "write")
    ]
    assert [floor.text for floor in floors if floor] == ["80% of nvlink", "370 GB/s"]


def test_mappings_merge_by_key_and_relative_figures_follow_the_childs_links(parent: Path) -> None:
    child = "schema: 1\nname: child\nextends: ours.yaml\nlinks:\n  nvlink: {per_link: 24 GB/s}\n"
    child += "waivers:\n- {cells: 'x/*', owner: me, reason: why, until: 2027-01-01}\n"
    profile = _load(parent, child, "child.yaml")
    assert profile.nvlink is not None
    assert (profile.nvlink.links, profile.nvlink.generation) == (18, 4)
    floor = _limit(profile, "peer_copy.write/gpu0-gpu1/512MiB").floor
    assert floor is not None
    assert floor.value == pytest.approx(0.8 * 18 * 24e9)
    assert [waiver.owner for waiver in profile.waivers] == ["ops", "me"]


def test_a_shipped_profile_can_be_extended(tmp_path: Path) -> None:
    text = "schema: 1\nname: half\nextends: h200-nvlink\ngpus: 4\n"
    profile = _load(tmp_path, text)
    assert profile.gpus == 4
    assert profile.limits[0].location.file == "thresholds/h200-nvlink.yaml"


def test_a_mistake_in_an_extended_file_is_told_of_that_file(parent: Path) -> None:
    (parent / "ours.yaml").write_text(BASE.replace("394 GB/s", "394"))
    (parent / "child.yaml").write_text(CHILD)
    with pytest.raises(ProfileError, match=r"ours\.yaml:17:13: limits\.expect: "):
        profiles.load(f"{parent}/child.yaml")


@pytest.mark.parametrize(
    ("extends", "words"),
    [
        ("child.yaml", "extends this file again"),
        ("./child.yaml", "extends this file again"),
        ("back.yaml", "extends this file again"),
        ("gone.yaml", "no such file"),
        ("h200-nvlnk", "did you mean 'h200-nvlink'?"),
        ("[a, b]", "a list where text belongs"),
    ],
)
def test_extending_what_cannot_be_extended_is_told(
    tmp_path: Path, extends: str, words: str
) -> None:
    (tmp_path / "back.yaml").write_text("schema: 1\nname: back\nextends: child.yaml\n")
    (tmp_path / "child.yaml").write_text(f"schema: 1\nname: child\nextends: {extends}\n")
    with pytest.raises(ProfileError) as caught:
        profiles.load(f"{tmp_path}/child.yaml")
    assert words in str(caught.value)
    assert ".yaml:3:10: " in str(caught.value)


def test_a_long_chain_is_refused(tmp_path: Path) -> None:
    for n in range(9):
        text = f"schema: 1\nname: p{n}\nextends: p{n + 1}.yaml\n"
        (tmp_path / f"p{n}.yaml").write_text(text)
    with pytest.raises(ProfileError, match="more than 5 files in a chain"):
        profiles.load(f"{tmp_path}/p0.yaml")


def _load_or_complain(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    complaint = ""
    try:
        profiles.load(str(path))
    except ProfileError as error:
        complaint = str(error)
    assert complaint.isprintable()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "ours.yaml"


_FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@_FUZZ
@given(
    data=st.one_of(
        st.binary(max_size=200),
        st.text(max_size=200).map(lambda t: t.encode("utf-8", "surrogatepass")),
    )
)
@example(data=b"schema: 1\xc2\x85name: x")
@example(data=b"? ? ? x")
@example(data=b"%YAML 9.9\n---\na: 1\n")
def test_arbitrary_bytes_never_raise_anything_else(scratch: Path, data: bytes) -> None:
    _load_or_complain(scratch, data)


_FRAGMENTS = (
    "[", "{", "}", "]", ": ", "- ", "\n", "\t", "&a ", "*a", "!!x ", "|\n", "none", "'", "9" * 400,
    "1e3", "nan", "\0", "\u00e9", "% of nvlink", "x peer_copy", "0", "---\n",
)  # fmt: skip


@_FUZZ
@given(
    at=st.integers(0, len(BASE)),
    cut=st.integers(0, 12),
    piece=st.one_of(st.sampled_from(_FRAGMENTS), st.text(max_size=8)),
)
def test_a_mutated_profile_loads_or_is_told_in_one_line(
    scratch: Path, at: int, cut: int, piece: str
) -> None:
    text = BASE[:at] + piece + BASE[at + cut :]
    _load_or_complain(scratch, text.encode("utf-8", "surrogatepass"))


@_FUZZ
@given(data=st.data())
def test_swapped_values_load_or_are_told_in_one_line(scratch: Path, data: st.DataObject) -> None:
    values = [line.split(": ", 1)[1] for line in BASE.splitlines() if ": " in line]
    lines = BASE.splitlines()
    row = data.draw(st.sampled_from([n for n, line in enumerate(lines) if ": " in line]))
    lines[row] = f"{lines[row].split(': ', 1)[0]}: {data.draw(st.sampled_from(values))}"
    _load_or_complain(scratch, "\n".join(lines).encode())


def test_the_plugin_itself_loads_no_yaml() -> None:
    code = "import sys, pytest_gpuxfer, pytest_gpuxfer.plugin; sys.exit('yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
