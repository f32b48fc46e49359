"""The rows of a page: keys and values, one after the other in the data that follows the message."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Protocol

from kshare_rpc.reassignment.copy_loop import MoveProblem


class RowLengths(Protocol):
    """The lengths of a row in its message, in bytes."""

    @property
    def key_length(self) -> int: ...

    @property
    def value_length(self) -> int: ...


def rows_of(
    lengths: Iterable[RowLengths], data: bytes, *, is_last: bool, after_key: bytes | None, key_may_be_empty: bool
) -> list[tuple[bytes, bytes]]:
    """Keys and values in key order, all beyond `after_key`; MoveProblem where lengths or the order are wrong.

    A page without rows must be the last one, or the copy would never end.
    """
    rows: list[tuple[bytes, bytes]] = []
    position = 0
    for row in lengths:
        value_at, end = position + row.key_length, position + row.key_length + row.value_length
        if row.key_length < (0 if key_may_be_empty else 1) or row.value_length < 0 or end > len(data):
            raise MoveProblem(f"it sent a row of {row.key_length} and {row.value_length} bytes that exceeds its data")
        rows.append((data[position:value_at], data[value_at:end]))
        position = end
    if position != len(data):
        raise MoveProblem(f"it sent {len(data)} bytes for rows of {position}")
    if not rows and not is_last:
        raise MoveProblem("it sent no rows but announced more")
    if any(one[0] >= other[0] for one, other in pairwise(rows)):
        raise MoveProblem("it sent rows out of order")
    if rows and after_key is not None and rows[0][0] <= after_key:
        raise MoveProblem(f"it sent the key {rows[0][0].hex()} after {after_key.hex()}")
    return rows
