"""Reads of a log from its store: each batch is read once, and none that is not asked for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from kshare_core.identifiers import TopicPartition
from kshare_leader.log import keys
from kshare_leader.log.stored_batches import StoredBatches
from kshare_runtime.ports import Write
from kshare_runtime.rocks_store import RocksStore
from support.wire.raw_batches import raw_batch

KEY = TopicPartition(bytes(15) + b"\x01", 0)
BATCH_BYTES = 100_000  # more than a block, and little enough for the block cache to keep


class CountedReads(RocksStore):
    """A store that counts the pairs that its scans return, and the values that were found."""

    pairs = 0
    values = 0

    def get(self, family: str, key: bytes) -> bytes | None:
        value = super().get(family, key)
        self.values += value is not None
        return value

    def scan(
        self, family: str, start: bytes, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for pair in super().scan(family, start, end, reverse=reverse):
            self.pairs += 1
            yield pair


def stored(path: Path) -> CountedReads:
    """A store with the batches (0, 9), (10, 19), (30, 39) in a table."""
    store = RocksStore(path)
    prefix = keys.partition_prefix(KEY)
    for base in (0, 10, 30):
        data = raw_batch(b"x" * BATCH_BYTES, count=10, base_offset=base, first_timestamp_ms=0)
        store.write([Write(keys.LOG, keys.long_key(prefix, base), data)])
    store.close()
    return CountedReads(path)


@pytest.mark.parametrize(
    ("offset", "count", "bases", "pairs", "values"),
    [
        (0, 1, [0], 1, 0),
        (10, 1, [10], 0, 1),
        (10, 2, [10, 30], 1, 1),
        (15, 1, [10], 1, 0),
        (15, 2, [10, 30], 2, 0),
        (25, 1, [30], 2, 0),
        (35, 3, [30], 1, 0),
    ],
)
def test_each_batch_is_read_once(
    tmp_path: Path, offset: int, count: int, bases: list[int], pairs: int, values: int
) -> None:
    store = stored(tmp_path / "store")
    batches = StoredBatches(store, KEY)
    assert [batch.base_offset for batch in islice(batches.from_offset(offset), count)] == bases
    assert (store.pairs, store.values) == (pairs, values)
    store.close()


@pytest.mark.parametrize(("offset", "end", "bases"), [(15, 30, [10]), (15, 10, []), (15, 31, [10, 30]), (0, 10, [0])])
def test_batches_that_begin_at_the_end_are_left_out(tmp_path: Path, offset: int, end: int, bases: list[int]) -> None:
    store = stored(tmp_path / "store")
    assert [batch.base_offset for batch in StoredBatches(store, KEY).from_offset(offset, end)] == bases
    store.close()


def test_a_scan_that_ends_early_reads_no_block_behind_its_last_pair(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    assert len(list(islice(store.scan(keys.LOG, b""), 1))) == 1
    figures = store.figures()
    assert figures is not None
    assert BATCH_BYTES <= figures.block_cache_bytes < 2 * BATCH_BYTES
    store.close()
