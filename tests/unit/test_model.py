"""Units, cell ids, statistics, patterns: each rule that a report rests on."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuxfer.model import units
from pytest_gpuxfer.model.cell import (
    DEFAULT_MEMORIES,
    MEMORIES,
    PATTERNS,
    Cell,
    CellError,
    Check,
    Engine,
    Initiator,
    Place,
    parse_cell,
    parse_check,
)
from pytest_gpuxfer.model.pattern import PERIOD_WORDS, Pattern, index_of, mix
from pytest_gpuxfer.model.statistics import CONFIDENCE, interval_rank, summarize


@pytest.mark.parametrize(
    ("text", "value"),
    [("512 MiB", 2**29), ("512MiB", 2**29), ("1 GiB", 2**30), ("16 B", 16), ("1.5 KiB", 1536)],
)
def test_a_size_is_read(text: str, value: int) -> None:
    assert units.parse_size(text) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("512", "unit is missing"),
        ("512 MiBs", "not known"),
        ("1e3 MiB", "write it like"),
        ("-1 MiB", "write it like"),
        ("nan MiB", "write it like"),
        ("0.3 B", "whole number"),
        ("", "write it like"),
    ],
)
def test_a_bad_size_says_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(units.UnitError, match=words):
        units.parse_size(text)


def test_decimal_and_binary_rates_differ() -> None:
    assert units.parse_rate("1 GB/s") == 1e9
    assert units.parse_rate("1 GiB/s") == 2**30
    assert units.format_rate(396.38e9) == "396.4 GB/s"
    assert units.format_rate(8.99e9) == "8.99 GB/s"


@given(st.integers(min_value=0, max_value=2**50))
def test_a_printed_size_is_read_back(size_bytes: int) -> None:
    assert units.parse_size(units.format_size(size_bytes)) == size_bytes


@given(st.text(max_size=12))
def test_no_text_makes_a_parser_do_worse_than_refuse(text: str) -> None:
    for parse in (units.parse_size, units.parse_rate, units.parse_duration):
        with suppress(units.UnitError):
            assert math.isfinite(parse(text))


checks = st.builds(
    Check,
    st.sampled_from(["peer_copy", "host_relay", "machine.nvlink", "small_copy_latency"]),
    st.sampled_from(Engine),
    st.sampled_from([None, *Initiator]),
    st.sampled_from([None, *(m for m in MEMORIES if m not in DEFAULT_MEMORIES)]),
    st.sampled_from([None, *PATTERNS]),
    st.booleans(),
)
gpus = st.integers(min_value=0, max_value=15)
places = st.one_of(
    st.builds(Place.pair, gpus, gpus), st.builds(Place.gpu, gpus), st.just(Place.all())
)


@given(checks, places, st.one_of(st.none(), st.integers(min_value=1, max_value=2**40)))
def test_an_id_names_one_cell(check: Check, place: Place, size_bytes: int | None) -> None:
    cell = Cell(check, place, size_bytes)
    assert parse_cell(cell.id) == cell


def test_ids_read_as_the_grammar_says() -> None:
    check = Check("unified_copy", initiator=Initiator.READ, memory="pool", access=False)
    cell = Cell(check, Place.pair(0, 1), 512 * units.MIB)
    assert cell.id == "unified_copy.read.pool.no-access/gpu0-gpu1/512MiB"
    assert Cell(Check("machine.nvlink"), Place.gpu(3)).id == "machine.nvlink/gpu3"


@pytest.mark.parametrize(
    "text", ["", "Peer/gpu0", "peer_copy", "peer_copy/gpu0-", "peer_copy.no-access.write/gpu0-gpu1",
             "peer_copy.write.write/gpu0-gpu1", "peer_copy/gpu0-gpu1/512MiB/x", "peer_copy/gpu٣"],
)  # fmt: skip
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(CellError, match="is no"):
        parse_cell(text)


def test_a_limit_never_speaks_of_a_pattern_or_of_copies_without_access() -> None:
    limit = parse_check("peer_copy")
    assert limit.covers(parse_check("peer_copy.write"))
    assert limit.covers(parse_check("peer_copy.read.pool"))
    assert not limit.covers(parse_check("peer_copy.write.no-access"))
    assert not limit.covers(parse_check("peer_copy.write.bidirectional"))
    assert not parse_check("peer_copy.read").covers(parse_check("peer_copy.write"))


@pytest.mark.parametrize("count", [6, 7, 8, 9, 12, 20, 33])
def test_the_interval_holds_the_median_as_often_as_it_claims(count: int) -> None:
    rank = interval_rank(count)
    outside = 2 * sum(math.comb(count, left) for left in range(rank + 1)) / 2**count
    wider = 2 * sum(math.comb(count, left) for left in range(rank + 2)) / 2**count
    assert outside <= 1 - CONFIDENCE < wider


def test_one_outlier_of_nine_moves_neither_median_nor_interval() -> None:
    steady = summarize([396.0, 396.1, 396.2, 396.3, 396.4, 396.5, 396.6, 396.7, 396.8])
    with_outlier = summarize([12.0, 396.1, 396.2, 396.3, 396.4, 396.5, 396.6, 396.7, 396.8])
    assert (steady.median, steady.low, steady.high) == (396.4, 396.1, 396.7)
    assert (with_outlier.median, with_outlier.low) == (396.4, 396.1)
    assert with_outlier.least == 12.0


@given(st.lists(st.floats(min_value=1e-300, max_value=1e300), min_size=1, max_size=40))
def test_a_summary_is_ordered(samples: list[float]) -> None:
    summary = summarize(samples)
    assert summary.least <= summary.low <= summary.median <= summary.high <= summary.most


@pytest.mark.parametrize("samples", [[], [math.nan], [1.0, math.inf]])
def test_nothing_finite_has_no_summary(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        summarize(samples)


def test_patterns_at_whole_pages_never_agree() -> None:
    pattern = Pattern(0)
    for page in range(1, 64):
        shifted = Pattern(page * 64 * 1024 // 8)
        assert pattern.word(0) != shifted.word(0)
    assert pattern.word(PERIOD_WORDS) == mix(0)


def test_the_words_of_a_period_are_distinct_and_none_is_trivial() -> None:
    words = {mix(index) for index in range(PERIOD_WORDS)}
    assert len(words) == PERIOD_WORDS
    assert not words & {0, 2**64 - 1}


@given(st.integers(0, 2**64 - 1), st.integers(0, PERIOD_WORDS - 1))
def test_a_word_tells_its_place(word: int, index: int) -> None:
    assert index_of(mix(index)) == index
    found = index_of(word)
    assert found is None or mix(found) == word
