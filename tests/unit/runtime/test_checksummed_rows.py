"""Rows with checksums: each flipped bit is noticed, and rows of older versions are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_runtime.checksummed_rows import ChecksummedRows, CorruptRow
from kshare_runtime.memory_store import DiskEvents, MemoryDisk
from kshare_runtime.ports import Write

ROWS = [(b"1", b""), (b"2", b"value"), (b"3", bytes(range(256)))]


class FlippedBit(DiskEvents):
    """One bit of each value is wrong."""

    bit: int | None = None

    def value_read(self, family: str, key: bytes, value: bytes) -> bytes:
        if self.bit is None:
            return value
        changed = bytearray(value)
        changed[self.bit // 8 % len(value)] ^= 1 << self.bit % 8
        return bytes(changed)


def test_each_flipped_bit_is_noticed_and_plain_families_are_left_alone() -> None:
    disk = MemoryDisk()
    disk.events = flipped = FlippedBit()
    store = disk.open_store("a")
    rows = ChecksummedRows(store, plain_families=["log"])
    rows.write([Write(family, key, value) for family in ("log", "rows") for key, value in ROWS])
    assert [*rows.scan("rows", b"")] == ROWS and [*rows.scan("log", b"")] == ROWS == [*store.scan("log", b"")]
    assert [*rows.scan("rows", b"", reverse=True)] == ROWS[::-1]
    for key, value in ROWS:
        assert rows.get("rows", key) == value
        for flipped.bit in range(8 * (8 + len(value))):
            with pytest.raises(CorruptRow, match=f"{key.hex()} of rows"):
                rows.get("rows", key)
            with pytest.raises(CorruptRow):
                next(rows.scan("rows", key))
        flipped.bit = None


def test_a_value_under_another_key_is_noticed() -> None:
    store = MemoryDisk().open_store("a")
    rows = ChecksummedRows(store)
    rows.write([Write("rows", b"1", b"one")])
    stored = store.get("rows", b"1")
    store.write([Write("rows", b"2", stored)])
    with pytest.raises(CorruptRow):
        rows.get("rows", b"2")


@given(
    st.one_of(
        st.integers(-1, 1 << 50).map(lambda number: number.to_bytes(8, "big", signed=True) * 3),
        st.tuples(st.integers(-1, 32767), st.integers(0, 1 << 43)).map(
            lambda fields: fields[0].to_bytes(2, "big", signed=True) + fields[1].to_bytes(8, "big") + b"rest"
        ),
        st.tuples(st.integers(8, 127), st.integers(0, 127), st.text()).map(
            lambda fields: bytes([*fields[:2], *fields[2].encode()])
        ),
        st.text(st.characters(max_codepoint=127)).map(str.encode),
        st.binary(max_size=7),
    )
)
def test_rows_of_older_versions_are_read(value: bytes) -> None:
    store = MemoryDisk().open_store("a")
    store.write([Write("rows", b"1", value)])
    assert ChecksummedRows(store).get("rows", b"1") == value
