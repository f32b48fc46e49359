"""Compressed batches of an existing cluster that no consumer can read: finds them before share groups get them.

A broker checks the records of compressed batches less strictly than a leader of the embedded engine: it stores wrong
lengths, and bytes after the compressed data. A share consumer that finds one such batch drops the whole range that it
acquired, with the good batches of other producers. So these batches are archived like a gap, and reported.

Small batches are checked at once, more bytes on a thread. A batch that would decompress beyond DECOMPRESSED_LIMIT is
not checked: the cluster took it, and a consumer may be able to read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from kshare_core.errors import KafkaError
from kshare_leader.log.aside import Aside
from kshare_leader.log.batch_validation import DEFAULT_DECOMPRESSED_BYTES
from kshare_wire.decompression import DecompressesTooFar
from kshare_wire.record_walks import check_structure, open_batch

DECOMPRESSED_LIMIT = DEFAULT_DECOMPRESSED_BYTES
INLINE_BYTES = 16 * 1024
"""Compressed bytes that are checked on the event loop; they may become INLINE_DECOMPRESSED_BYTES, and no more."""
INLINE_DECOMPRESSED_BYTES = 256 * 1024

_LENGTH_AT, _LENGTH_END = 8, 12
_MAGIC_AT, _ATTRIBUTES_AT, _COMPRESSION = 16, 22, 0x07
_HEADER_BYTES = 61
_MAGIC = 2


class UnreadableBatches:
    """The checks of a node; `close` ends its thread."""

    def __init__(self) -> None:
        self._aside = Aside("unreadable-batches")

    def close(self) -> None:
        self._aside.close()

    async def find(self, records: bytes | memoryview) -> dict[int, str]:
        """The problem of each unreadable batch in the records of a Fetch response, by base offset."""
        batches = list(compressed_batches(memoryview(records)))
        if not batches:
            return {}
        if sum(map(len, batches)) <= INLINE_BYTES:
            try:
                return _problems(batches, INLINE_DECOMPRESSED_BYTES)
            except DecompressesTooFar:
                pass
        return await self._aside.run(partial(_problems_as_far_as_possible, batches))


def compressed_batches(view: memoryview) -> Iterator[memoryview]:
    """The whole batches whose records are compressed."""
    position = 0
    while len(view) - position >= _HEADER_BYTES:
        size = _LENGTH_END + int.from_bytes(view[position + _LENGTH_AT : position + _LENGTH_END], signed=True)
        if size < _HEADER_BYTES or position + size > len(view):
            return
        if view[position + _ATTRIBUTES_AT] & _COMPRESSION and view[position + _MAGIC_AT] == _MAGIC:
            yield view[position : position + size]
        position += size


def _problems(batches: Sequence[memoryview], limit_bytes: int) -> dict[int, str]:
    """DecompressesTooFar where a batch does."""
    found: dict[int, str] = {}
    for batch in batches:
        try:
            check_structure(open_batch(batch, limit_bytes))
        except KafkaError as error:
            found[int.from_bytes(batch[:_LENGTH_AT])] = error.message
    return found


def _problems_as_far_as_possible(batches: Sequence[memoryview]) -> dict[int, str]:
    found: dict[int, str] = {}
    for batch in batches:
        try:
            found |= _problems([batch], DECOMPRESSED_LIMIT)
        except DecompressesTooFar:
            continue
    return found
