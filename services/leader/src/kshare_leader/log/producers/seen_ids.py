"""The producer ids that a leader's logs have seen: their end is stored, and reported at each registration.

The coordinator gives out producer ids from a counter. If its store is an older copy, the counter is behind, and an id
that a log knows already would be given to a new producer. The log would take that producer's first batches for
duplicates of stored ones, and confirm records that it does not append. The coordinator therefore moves its counter to
the end that a leader reports.

The end is written in the same write as the producer's entry. It is rounded up to whole blocks, so that this is rare.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kshare_leader.log import keys
from kshare_runtime.checksummed_rows import CorruptRow, unsealed
from kshare_runtime.ports import KeyValueStore, Write

BLOCK_SIZE = 1_000
"""As ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE."""
PRODUCER_ID_LIMIT = 1 << 53
"""Ids from here on do not count. No coordinator gave them out: a client made them up, and they must not use up the ids
of all others."""
_END_BYTES = 8
_KEY_BYTES = keys.PARTITION_PREFIX_BYTES + 8
"""A row with another key is damaged; its partition is offline, and others are served."""


class SeenProducerIds:
    """The end of the producer ids that the logs of one store have seen. It is read at the first use; StorageFailure."""

    def __init__(self, store: KeyValueStore, *, rows: KeyValueStore | None = None) -> None:
        """`rows` is the store without its checksums, if `store` has them."""
        self._store = store
        self._rows = rows or store
        self._end: int | None = None
        self._stored_end = 0

    def end(self) -> int:
        """A number above all producer ids that were seen; 0 where there is none.

        The end of an older version's store comes from durable entries; the next append stores it.
        """
        self._store.finish_writes()
        return self._read()

    def end_with(self, producer_ids: Iterable[int]) -> int:
        """The end when these ids have been seen too."""
        return max(self._read(), _end_of(producer_ids))

    def writes(self, end: int) -> list[Write]:
        """The write that stores an end of `end_with`, if it is not stored; `written` follows when it is durable."""
        if end == self._stored_end:
            return []
        return [Write(keys.META, keys.PRODUCER_ID_END_KEY, end.to_bytes(_END_BYTES, "big"))]

    def written(self, end: int) -> None:
        self._end = self._stored_end = end

    def write(self, rows: Sequence[Write], producer_ids: Iterable[int]) -> None:
        """Writes rows that bring entries of these producers, in one durable write."""
        self._store.finish_writes()  # else a lower end that is being written might replace this one
        end = self.end_with(producer_ids)
        writes = [*rows, *self.writes(end)]
        if writes:
            self._store.write(writes)
            self.written(end)

    def _read(self) -> int:
        if self._end is None:
            stored = self._store.get(keys.META, keys.PRODUCER_ID_END_KEY)
            if stored is None:  # of an older version, or new
                self._end = _end_of(self._stored_ids())
            else:
                self._stored_end = int.from_bytes(stored, "big")
                self._end = min(self._stored_end, PRODUCER_ID_LIMIT)  # an older version stored up to a block more
        return self._end

    def _stored_ids(self) -> Iterator[int]:
        """The producers with an entry that can be read; the partitions of others are offline."""
        for key, stored in self._rows.scan(keys.PRODUCERS, b""):
            if len(key) != _KEY_BYTES:
                continue
            try:
                unsealed(keys.PRODUCERS, key, stored)
            except CorruptRow:
                continue
            yield keys.number_of(key)


def _end_of(producer_ids: Iterable[int]) -> int:
    highest = max((each for each in producer_ids if each < PRODUCER_ID_LIMIT), default=-1)
    return min((highest // BLOCK_SIZE + 1) * BLOCK_SIZE, PRODUCER_ID_LIMIT)
