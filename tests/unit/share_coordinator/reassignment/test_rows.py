"""Rows of whole state partitions in a store, the same in memory and on RocksDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.rocks_store import RocksStore
from kshare_share_coordinator.checksummed_store import ChecksummedStore, sealed
from kshare_share_coordinator.reassignment.rows import Row, StatePartitionRows


@pytest.fixture(params=["memory", "rocks"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ChecksummedStore]:
    below = MemoryDisk().open_store("test") if request.param == "memory" else RocksStore(tmp_path / "store")
    store = ChecksummedStore(below)
    yield store
    store.close()


def row(key: bytes, value: bytes) -> Row:
    return Row(key, sealed(key, value))


ROWS = [row(bytes([0, number]), b"x" * number) for number in range(1, 40)] + [row(b"\x80o" + bytes(8), b"index")]
"""Record keys, and one of the index that makes a topic of a state partition."""


def test_pieces_follow_each_other_and_end_with_the_last(store: ChecksummedStore) -> None:
    rows = StatePartitionRows(store)
    rows.write_piece(3, ROWS, None)
    rows.write_piece(30, ROWS[:2], None)
    for max_bytes in (1, 30, 200, 1 << 20):
        found: list[Row] = []
        is_last = False
        while not is_last:
            piece, is_last = rows.piece(3, found[-1].key if found else b"", max_bytes)
            assert len(piece) == 1 or sum(each.size for each in piece) <= max_bytes
            found += piece
        assert found == ROWS
    assert rows.piece(4, b"", 100) == ([], True)


def test_the_mark_comes_with_the_last_rows_and_goes_with_all_of_them(store: ChecksummedStore) -> None:
    rows = StatePartitionRows(store)
    assert rows.copied_epoch(3) is None and rows.state_partitions() == []
    rows.write_piece(3, ROWS[:5], None)
    assert rows.copied_epoch(3) is None
    rows.write_piece(3, ROWS[5:], 2**31 - 1)
    rows.write_piece(12, [], 7)
    assert (rows.copied_epoch(3), rows.copied_epoch(12)) == (2**31 - 1, 7)
    rows.write_piece(5, ROWS[:1], None)
    assert rows.state_partitions() == [3, 5, 12]
    rows.remove(3)
    rows.remove(12)
    rows.remove(40)
    assert rows.state_partitions() == [5]
    assert rows.piece(3, b"", 1 << 20) == ([], True) and rows.copied_epoch(3) is None


def test_rows_that_were_removed_can_be_copied_again(store: ChecksummedStore) -> None:
    rows = StatePartitionRows(store)
    rows.write_piece(3, ROWS, 1)
    rows.remove(3)
    rows.write_piece(3, ROWS[10:20], 2)
    assert rows.piece(3, b"", 1 << 20) == (ROWS[10:20], True)
    assert [value for _, value in store.scan("state-3", b"")] == [b"x" * number for number in range(11, 21)]


def test_a_row_knows_whether_it_is_what_was_written() -> None:
    good = row(b"key", b"value")
    assert good.corruption(3) is None
    assert "state-3" in str(good._replace(key=b"kez").corruption(3))
    assert good._replace(value=good.value[:-1]).corruption(3) is not None
    assert good._replace(value=b"").corruption(3) is not None
