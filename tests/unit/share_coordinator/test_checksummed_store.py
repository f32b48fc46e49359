"""Rows with checksums: an undamaged row is returned as written, damage is reported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_core.errors import StorageFailure
from kshare_runtime.checksummed_rows import CorruptRow
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import Write
from kshare_share_coordinator.checksummed_store import ChecksummedStore, sealed, unsealed


@given(key=st.binary(max_size=20), value=st.binary(max_size=60), place=st.integers(0), bit=st.integers(0, 7))
def test_any_flipped_bit_of_a_row_is_noticed(key: bytes, value: bytes, place: int, bit: int) -> None:
    stored = sealed(key, value)
    assert unsealed("state-1", key, stored) == value
    changed = bytearray(stored)
    changed[place % len(changed)] ^= 1 << bit
    with pytest.raises(CorruptRow, match="state-1"):
        unsealed("state-1", key, bytes(changed))
    with pytest.raises(CorruptRow):
        unsealed("state-1", key + b"x", stored)


@given(value=st.binary(max_size=20), length=st.integers(0, 24))
def test_a_row_that_was_cut_off_is_noticed(value: bytes, length: int) -> None:
    stored = sealed(b"key", value)
    if length < len(stored):
        with pytest.raises(CorruptRow):
            unsealed("state-1", b"key", stored[:length])


def test_a_store_of_checksummed_rows_reads_as_it_was_written() -> None:
    raw = MemoryDisk().open_store("test")
    store = ChecksummedStore(raw)
    store.write([Write("x", b"1", b"one"), Write("x", b"2", b""), Write("x", b"3", b"three"), Write("x", b"3", None)])
    assert store.get("x", b"1") == b"one" and store.get("x", b"3") is None
    assert list(store.scan("x", b"")) == [(b"1", b"one"), (b"2", b"")]
    assert list(store.scan("x", b"", b"2", reverse=True)) == [(b"1", b"one")]
    assert [key for key, _ in store.scan_stored("x", b"2")] == [b"2"]
    assert store.families() == ["x"] and store.maintained is None and store.damage("x") is None
    raw.write([Write("x", b"1", b"one")])
    with pytest.raises(CorruptRow, match="has 3 bytes, fewer than its checksum"):
        store.get("x", b"1")
    with pytest.raises(StorageFailure):
        list(store.scan("x", b""))
    store.delete_range("x", b"1", b"2")
    assert list(store.scan("x", b"")) == [(b"2", b"")]
    store.close()
    with pytest.raises(StorageFailure, match="closed"):
        raw.families()
