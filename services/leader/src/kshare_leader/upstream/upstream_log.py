"""The log of one partition of an existing cluster, as share-partitions read it: `ports.TopicLog` over a window.

Reads are synchronous and are answered from memory. What is missing is fetched by `LogFetcher`, which asks `next_fetch`
what to fetch and hands every answer to `take`. Groups with `read_committed` and others have a window each, because a
broker tells of aborted transactions only with the former's fetches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kshare_core.identifiers import TopicPartition
from kshare_core.leader_epochs import LEADER_EPOCHS_LIMIT, EpochEntry, encode_leader_epochs
from kshare_leader.ports import AbortedTransaction, ReadableBatches, StoredBatch, TimestampOffset
from kshare_leader.upstream.pieces import Piece, piece_of
from kshare_leader.upstream.window import Window
from kshare_upstream.partition_log import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, PartitionLog
from kshare_upstream.port import UpstreamPartitionName
from kshare_wire.record_batches import leader_epoch_of

INTEREST_MS = 30_000
"""How long a log is fetched after its last read."""
AHEAD_SHARE = 0.5
"""The part of a window that may be filled ahead of its reader."""


class FetchPosition(NamedTuple):
    """From where a log is to be fetched next; `is_tail` where nothing is known to be there yet."""

    offset: int
    is_tail: bool


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a broker answered about one partition."""

    fetch_offset: int
    records: bytes | memoryview
    high_watermark: int
    last_stable_offset: int
    """-1 where the fetch was not read_committed."""
    log_start_offset: int
    aborted: Sequence[tuple[int, int]] = ()
    """Producer id and first offset of each aborted transaction."""


class _View:
    """The window of one isolation level, and where it was read last."""

    def __init__(self, limit_bytes: int) -> None:
        self.window = Window(limit_bytes)
        self.limit_bytes = limit_bytes
        self.position: int | None = None
        self.last_read_ms = 0
        self.listeners: dict[object, Callable[[], None]] = {}

    def next_offset(self, log_end: int) -> int | None:
        """The first offset that is missing, None where enough was fetched ahead. Nobody read yet: the log's end."""
        if self.window.missing_from is not None:
            return self.window.missing_from
        end, ahead_bytes = self.window.covered(log_end if self.position is None else self.position)
        return end if ahead_bytes < self.limit_bytes * AHEAD_SHARE else None


class UpstreamLog:
    """Implements ports.TopicLog; `open` before use."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        log: PartitionLog,
        *,
        window_limit_bytes: int,
        now_ms: Callable[[], int],
        on_demand: Callable[[UpstreamLog], None],
    ) -> None:
        """`on_demand` is called when something is to be fetched that no fetch under way brings."""
        self.topic_partition = topic_partition
        self.log_start_offset = 0
        self.high_watermark = 0
        self.last_stable_offset = 0
        self.generation = 0
        """Grows when the log has other records than before at offsets that were known."""
        self.leader_epochs: list[EpochEntry] = []
        self.validated_from = 0
        """The cluster validated every record when it was appended."""
        self._log = log
        self._now_ms = now_ms
        self._on_demand = on_demand
        self._views = {False: _View(window_limit_bytes), True: _View(window_limit_bytes)}

    @property
    def at(self) -> UpstreamPartitionName:
        return self._log.at

    async def open(self) -> None:
        """Learns where the log begins and ends, and its leader epochs. Refused, OutcomeUnknown."""
        start, stable, end, epochs = await asyncio.gather(
            self._log.offset_at(EARLIEST_TIMESTAMP),
            self._log.offset_at(LATEST_TIMESTAMP, read_committed=True),
            self._log.offset_at(LATEST_TIMESTAMP),
            self._log.leader_epochs(),
        )
        if end < self.high_watermark:
            self.generation += 1
        self.log_start_offset, self.last_stable_offset, self.high_watermark = start, stable, end
        self.leader_epochs = [EpochEntry(*entry) for entry in epochs][-LEADER_EPOCHS_LIMIT:]
        for view in self._views.values():
            view.window.clear()

    def encoded_leader_epochs(self) -> bytes:
        return encode_leader_epochs(self.leader_epochs)

    def readable(self, batches: Sequence[StoredBatch]) -> ReadableBatches:
        return ReadableBatches(list(batches), None)

    def read(self, fetch_offset: int, max_bytes: int, *, read_committed: bool = False) -> list[StoredBatch]:
        """See TopicLog.read; nothing where the records are not here yet, and listeners are called when they are."""
        view = self._views[read_committed]
        fetch_offset = max(fetch_offset, self.log_start_offset)
        found = view.window.read(fetch_offset, max_bytes)
        view.last_read_ms = self._now_ms()
        view.position = found[-1].last_offset + 1 if found else fetch_offset
        if self.next_fetch(read_committed=read_committed) is not None:
            self._on_demand(self)
        return found

    def aborted_transactions(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        return self._views[True].window.aborted_transactions(first_offset, end_offset)

    async def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        offset = await self._log.offset_at(timestamp_ms)
        return None if offset < 0 else TimestampOffset(timestamp_ms, offset)

    def add_listener(self, listener: Callable[[], None], *, read_committed: bool = False) -> Callable[[], None]:
        """See TopicLog.add_listener; while there is a listener the log is fetched for its isolation level."""
        token, listeners = object(), self._views[read_committed].listeners
        listeners[token] = listener
        self._on_demand(self)

        def remove() -> None:
            listeners.pop(token, None)

        return remove

    def next_fetch(self, *, read_committed: bool) -> FetchPosition | None:
        """What to fetch next for an isolation level; None while nobody reads, or enough is here."""
        view = self._views[read_committed]
        was_read = view.position is not None and self._now_ms() - view.last_read_ms <= INTEREST_MS
        if not was_read and not view.listeners:
            return None
        end = self.last_stable_offset if read_committed else self.high_watermark
        offset = view.next_offset(end)
        if offset is None:
            return None
        offset = max(offset, self.log_start_offset)
        return FetchPosition(offset, is_tail=offset >= end)

    def take(self, fetched: Fetched, *, read_committed: bool) -> None:
        """Takes a broker's answer; KafkaError CORRUPT_MESSAGE where its records are damaged."""
        before = self.high_watermark, self.last_stable_offset
        self.log_start_offset = max(self.log_start_offset, fetched.log_start_offset)
        self.high_watermark = max(self.high_watermark, fetched.high_watermark)
        if read_committed:
            self.last_stable_offset = max(self.last_stable_offset, fetched.last_stable_offset)
        piece = piece_of(fetched.fetch_offset, fetched.records, fetched.aborted)
        if piece is not None:
            self._note_leader_epochs(piece)
            self._views[read_committed].window.add(piece)
        if piece is not None or before != (self.high_watermark, self.last_stable_offset):
            for view in self._views.values():
                for listener in list(view.listeners.values()):
                    listener()

    def _note_leader_epochs(self, piece: Piece) -> None:
        newest = self.leader_epochs[-1].leader_epoch if self.leader_epochs else -1
        if leader_epoch_of(piece.batches[-1].data) <= newest:
            return
        for epoch, offset in _epoch_starts(piece.batches):
            if epoch > newest:
                self.leader_epochs.append(EpochEntry(epoch, offset))
                newest = epoch
        del self.leader_epochs[:-LEADER_EPOCHS_LIMIT]


def _epoch_starts(batches: Iterable[StoredBatch]) -> Iterable[tuple[int, int]]:
    """Each leader epoch with the base offset of its first batch here."""
    last = -1
    for batch in batches:
        epoch = leader_epoch_of(batch.data)
        if epoch != last:
            yield epoch, batch.base_offset
            last = epoch
