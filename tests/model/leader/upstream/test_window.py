"""A window of pieces against the log that they were cut from: what it returns is right, whatever it holds."""

from __future__ import annotations

import random

import pytest

from kshare_leader.ports import AbortedTransaction, StoredBatch
from kshare_leader.upstream.pieces import Piece, piece_of
from kshare_leader.upstream.window import Window
from support.leader.transactional_log import TransactionalLog, random_log

SEEDS = range(60)
STEPS = 60


def piece(log: TransactionalLog, offset: int, end_offset: int) -> Piece | None:
    records, aborted = log.fetched(offset, end_offset)
    return piece_of(offset, records, aborted)


def expected(log: TransactionalLog, offset: int) -> list[int]:
    """Base offsets of the batches from `offset` on."""
    return [batch.base_offset for batch in log.batches if batch.last_offset >= offset]


def missing_from(window: Window) -> int | None:
    return next(iter(window.missing), None)


def is_aborted(batch: StoredBatch, transactions: list[AbortedTransaction]) -> bool:
    """As `log_slices` decides it for batches of records."""
    return (
        batch.is_transactional
        and not batch.is_control
        and any(
            each.producer_id == batch.producer_id and each.first_offset <= batch.base_offset <= each.last_offset
            for each in transactions
        )
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_reads_are_those_of_the_log(seed: int) -> None:
    """Pieces come in any order, overlap, and are dropped; a read is a beginning of what the log has there."""
    chance = random.Random(seed)
    log = random_log(chance, 40)
    whole = piece(log, 0, log.end_offset)
    assert whole is not None
    size = whole.size_bytes
    window = Window(limit_bytes=chance.choice([size // 8, size // 2, size * 2]))
    aborted = {batch.base_offset for batch in log.batches if batch.is_aborted}
    was_answered = False
    for _ in range(STEPS):
        offset = missing_from(window) if chance.random() < 0.5 else None
        first = chance.randrange(log.end_offset) if offset is None else offset
        found = piece(log, first, first + chance.randint(1, 30))
        if found is not None:
            window.add(found)
        read_from = chance.randrange(log.end_offset)
        read = window.read(read_from, max_bytes=chance.choice([1, 500, 1 << 20]))
        bases = [batch.base_offset for batch in read]
        assert bases == expected(log, read_from)[: len(bases)]
        assert read or missing_from(window) is not None
        transactions = window.aborted_transactions(read_from, read[-1].last_offset + 1) if read else []
        assert [batch.base_offset for batch in read if is_aborted(batch, transactions)] == [
            base for base in bases if base in aborted
        ]
        was_answered = was_answered or bool(read)
    assert was_answered


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reader_that_fetches_what_is_missing_reads_everything(seed: int) -> None:
    """Also where the window holds less than a reader's step, and where compaction left holes."""
    chance = random.Random(seed)
    log = random_log(chance, 40)
    window = Window(limit_bytes=1_500)
    offset, found = 0, []
    for _ in range(1000):
        read = window.read(offset, max_bytes=chance.choice([1, 300]))
        found += [batch.base_offset for batch in read]
        if read:
            offset = read[-1].last_offset + 1
            continue
        first = missing_from(window)
        assert first is not None
        fetched = piece(log, first, log.end_offset if chance.random() < 0.3 else first + 12)
        if fetched is None and first + 12 > log.batches[-1].last_offset:
            break
        if fetched is None:  # a batch that does not fit: a broker returns it all the same
            fetched = piece(log, first, log.end_offset)
        if fetched is not None:
            window.add(fetched)
    assert found == [batch.base_offset for batch in log.batches]


def test_a_window_keeps_to_its_limit_but_for_the_newest_piece() -> None:
    log = random_log(random.Random(1), 60)
    whole = piece(log, 0, log.end_offset)
    assert whole is not None
    size = whole.size_bytes
    window = Window(limit_bytes=size // 4)
    for first in range(0, log.end_offset, 5):
        found = piece(log, first, first + 12)
        if found is not None:
            window.add(found)
            assert window.size_bytes <= max(size // 4, found.size_bytes)
    window.add(whole)
    assert window.size_bytes == size
    window.clear()
    assert (window.size_bytes, window.read(0, 100), window.covered_end(3)) == (0, [], 3)


def test_what_was_fetched_longest_ago_is_dropped_first() -> None:
    """Also where it was read since: a reader that goes on has passed it."""
    log = random_log(random.Random(2), 60)
    thirds = [log.batches[len(log.batches) * part // 3].base_offset for part in range(3)]
    pieces = [piece(log, first, first + 6) for first in thirds]
    sizes = [each.size_bytes for each in pieces if each is not None]
    window = Window(limit_bytes=sum(sizes) - 1)
    for each in pieces[:2]:
        assert each is not None
        window.add(each)
    assert window.read(thirds[0], 1)
    assert pieces[2] is not None
    window.add(pieces[2])
    assert not window.read(thirds[0], 1)
    assert window.read(thirds[1], 1) and window.read(thirds[2], 1)
