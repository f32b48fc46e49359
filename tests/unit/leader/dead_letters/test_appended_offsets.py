"""The offsets of a source that a receiver has appended, against a set of single offsets."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import SharePartitionKey, TopicPartition
from kshare_leader.dead_letters.appended import (
    AppendedOffsets,
    decode_row,
    encode_row,
    parse_row_key,
    row_key,
    row_of_epoch,
)
from kshare_leader.dead_letters.letters import OffsetRun
from kshare_leader.share.start_offset import Truncation


def offsets_of(runs: Iterable[OffsetRun]) -> list[int]:
    return [offset for first, last in runs for offset in range(first, last + 1)]


def runs_of(offsets: Iterable[int]) -> list[OffsetRun]:
    runs: list[OffsetRun] = []
    for offset in sorted(offsets):
        if runs and runs[-1].last_offset + 1 == offset:
            runs[-1] = OffsetRun(runs[-1].first_offset, offset)
        else:
            runs.append(OffsetRun(offset, offset))
    return runs


OFFSETS = st.sets(st.integers(0, 30), min_size=1)


@given(st.lists(st.tuples(OFFSETS, st.integers(0, 25)), max_size=8), OFFSETS)
def test_a_row_agrees_with_a_set_of_offsets(history: list[tuple[set[int], int]], asked: set[int]) -> None:
    row = row_of_epoch(None, 3)
    known: set[int] = set()
    start = 0
    for number, (appended, start_offset) in enumerate(history):
        row = row.after(start_offset, runs_of(appended), number)
        start = max(start, start_offset)
        known = {offset for offset in known | appended if offset >= start}
        assert list(row.runs) == runs_of(known), "as few runs as there can be, none below the start"
        assert (row.start_offset, row.last_append_ms) == (start, number)
        assert decode_row(encode_row(row)) == row
    assert offsets_of(row.appended(runs_of(asked))) == [n for n in sorted(asked) if n < start or n in known]


def test_a_higher_state_epoch_begins_a_new_history_and_a_lower_one_is_fenced() -> None:
    row = AppendedOffsets(5, 100, 1, (OffsetRun(100, 110),))
    cut = row_of_epoch(row, 5, Truncation(7, 105))
    assert cut == AppendedOffsets(5, 100, 1, (OffsetRun(100, 104),), 7)
    assert cut.appended([OffsetRun(100, 120)]) == [OffsetRun(100, 104)], "from 105 on the log has other records"
    assert decode_row(encode_row(cut)) == cut
    assert row_of_epoch(row, 5, Truncation(7, 40)) == AppendedOffsets(5, 40, 1, (), 7)
    with pytest.raises(KafkaError, match="was cut in leader epoch 7"):
        row_of_epoch(cut, 5, Truncation(6, 90))
    of_an_older_version = struct.pack(">iqq", 5, 100, 1) + struct.pack(">qq", 100, 110)
    assert decode_row(of_an_older_version) == row
    assert row_of_epoch(row, 5) is row
    assert row_of_epoch(row, 6).appended([OffsetRun(0, 200)]) == []
    with pytest.raises(KafkaError) as caught:
        row_of_epoch(row, 4)
    assert caught.value.code == ErrorCode.FENCED_STATE_EPOCH


@pytest.mark.parametrize("group_id", ["group", "ä/ö", "g" * 255])
def test_a_row_key_names_both_ends(group_id: str) -> None:
    destination = TopicPartition(bytes(range(16)), 2)
    source = SharePartitionKey(group_id, bytes(range(16, 32)), 70_000)
    key = row_key(destination, source)
    assert parse_row_key(key) == (destination, source)
    assert key.startswith(bytes(range(16)) + b"\x00\x00\x00\x02"), "so that it goes when the topic is deleted"
