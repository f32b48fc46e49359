"""What one fetch of an upstream log brings: batches that are whole, and damage that is not hidden."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest

from kshare_core.errors import KafkaError
from kshare_leader.upstream.pieces import piece_of
from kshare_leader.upstream.window import Window
from support.environment.traced_memory import traced_memory
from support.leader.transactional_log import random_log

LOG = random_log(random.Random(3), 10)
RECORDS, ABORTED = LOG.fetched(0, LOG.end_offset)


def test_batches_are_as_they_are_in_the_log() -> None:
    found = piece_of(0, RECORDS, ABORTED)
    assert found is not None
    assert [(each.base_offset, each.last_offset, each.data, each.is_control) for each in found.batches] == [
        (each.base_offset, each.last_offset, each.data, each.is_control) for each in LOG.batches
    ]
    assert (found.first_offset, found.end_offset) == (0, LOG.batches[-1].last_offset + 1)
    assert sum(each.length for each in found.batches) == len(RECORDS)


def test_a_piece_counts_what_short_batches_need_in_memory() -> None:
    records = [each.data for each in random_log(random.Random(4), 10).batches]
    shortest = min(records, key=len)
    window = Window(1 << 30)
    with traced_memory() as used_bytes:
        for offset in range(1_000, 3_000):
            found = piece_of(offset, offset.to_bytes(8, "big") + shortest[8:])
            assert found is not None
            window.add(found)
        held = used_bytes()
    assert window.piece_count == 2_000
    assert 0.8 <= window.size_bytes / held <= 1.25


def test_coverage_begins_where_the_fetch_began_or_at_the_batch_that_holds_it() -> None:
    long = next(each for each in LOG.batches if each.last_offset > each.base_offset)
    inside = piece_of(long.last_offset, long.data)
    before = piece_of(max(0, long.base_offset - 5), long.data)
    assert inside is not None and inside.first_offset == long.base_offset
    assert before is not None and before.first_offset == max(0, long.base_offset - 5)


@pytest.mark.parametrize("kept", range(0, 200, 7))
def test_a_batch_that_was_cut_off_is_left_out(kept: int) -> None:
    found = piece_of(0, RECORDS[:kept])
    lengths = [len(each.data) for each in LOG.batches]
    whole = sum(1 for end in accumulate(lengths) if end <= kept)
    assert ([each.data for each in found.batches] if found else []) == [each.data for each in LOG.batches[:whole]]


def test_damaged_records_are_an_error() -> None:
    damaged = bytearray(RECORDS)
    damaged[16] = 99  # the magic byte
    with pytest.raises(KafkaError, match="magic 99"):
        piece_of(0, bytes(damaged))


def test_batches_before_one_that_cannot_be_read_are_delivered() -> None:
    """One of message format v1, for example; the fetch that begins with it fails."""
    old = bytearray(LOG.batches[-1].data)
    old[16] = 1
    whole = b"".join(each.data for each in LOG.batches[:-1])
    found = piece_of(0, whole + old)
    assert found is not None and found.end_offset == LOG.batches[-2].last_offset + 1
    with pytest.raises(KafkaError, match="magic version 2, not 1"):
        piece_of(found.end_offset, bytes(old))
