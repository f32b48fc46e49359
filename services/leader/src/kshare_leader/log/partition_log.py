"""The log of one partition: checks record batches, assigns their offsets, stores them and reads them back.

**Appends** have two steps, so that many of them share one write. `prepare` takes a batch whose own bytes were validated
(`batch_validation`), checks it against the batches before it, assigns its offsets and collects the writes in a
`PendingAppends`. The log itself does not change. When the writes are durable, `commit` makes the batches readable and
moves the high watermark. When they failed, the PendingAppends is discarded and no offset was assigned.

**Reads** of recent batches come from the tail in memory, older ones from the store by seeking to the batch that holds
the offset. Look-ups by time use a sparse index. An entry after each INDEX_INTERVAL_BYTES of batches says up to which
offset no record is newer than a timestamp. From there on the look-up scans headers in slices and opens only one batch.
It skips segments without a record that is new enough. Once the newest record before older ones was removed, the index
says nothing about them, and the look-up scans up to a whole segment, as in Kafka.

The state of producers and their transactions is in `producers.state`: it admits the batches of producers, and its
writes are part of the log's. `prepare_end` adds the marker that ends a transaction.

**Deletion.** Retention and DeleteRecords move the log start offset with one durable write (`plan_start`,
`commit_start`). Nothing below it can be read afterwards; the bytes are removed later (`remove_unreachable`). Compaction
replaces the batches of closed segments (`rewrite`), keeps their offsets, and thins out the index of timestamps.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from kshare_core.contained_bugs import report_contained_bug
from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.identifiers import TopicPartition, topic_id_text
from kshare_core.leader_epochs import EpochEntry, epoch_at
from kshare_core.log_fields import about
from kshare_leader.log import keys
from kshare_leader.log.batch_validation import CheckedBatch
from kshare_leader.log.divergence import diverging_offset
from kshare_leader.log.leader_epoch_history import LeaderEpochWentBack
from kshare_leader.log.old_batches import OldBatches
from kshare_leader.log.producers.entries import PRODUCERS_LIMIT
from kshare_leader.log.producers.pending_appends import INDEX_INTERVAL_BYTES, Appended, PendingAppends
from kshare_leader.log.producers.state import ProducerState, TransactionalAppend
from kshare_leader.log.producers.transactions import EndTransaction
from kshare_leader.log.record_reader import RecordReader
from kshare_leader.log.segments import (
    PendingSegments,
    Positions,
    Segment,
    StartChange,
    encode_positions,
    plan_start,
    segment_write,
)
from kshare_leader.log.stored_batches import StoredBatches
from kshare_leader.log.tail import TailCache
from kshare_leader.log.topic_settings import TopicSettings
from kshare_leader.ports import AbortedTransaction, ReadableBatches, StoredBatch, TimestampOffset
from kshare_runtime.ports import AppendedWrite, KeyRange, KeyValueStore, Write
from kshare_wire.record_batches import (
    NO_TIMESTAMP,
    BatchHeader,
    build_end_transaction_marker,
    patch,
    patch_times,
    read_header,
)

LOOKUP_LIMIT_BYTES = 64 * INDEX_INTERVAL_BYTES
"""Bytes of batches that a look-up by time opens in vain; their headers have a timestamp that none of their records has.
"""
LOOKUP_SLICE_BYTES = 1024 * 1024
"""Bytes that a look-up by time reads before it yields to the event loop."""
INDEX_SLICE = 5_000
"""Entries of the timestamp index that one write thins out."""


class PartitionLog:
    """The log of one partition; implements ports.TopicLog. The module's docstring has the rules."""

    def __init__(
        self,
        *,
        key: TopicPartition,
        store: KeyValueStore,
        tails: TailCache,
        settings: TopicSettings,
        leader_epoch: int,
        report: Callable[[str], None] = lambda text: None,
        producers_limit: int = PRODUCERS_LIMIT,
        reader: RecordReader | None = None,
        settle: Callable[[], None] = lambda: None,
        rows: KeyValueStore | None = None,
    ) -> None:
        """Opens the log; StorageFailure where its end cannot be read or its last batch is damaged.

        `report` is called when a listener raises. `settle` waits until no append is between `writes` and `commit`; it
        is called before the log changes in another way. `rows` are those below the checksums, for what their keys tell.
        """
        self._settle = settle
        self._key = key
        self._store = store
        self._tails = tails
        self._report = about(key, report)
        self.reader = reader or RecordReader()
        self._prefix = keys.partition_prefix(key)
        self._prefix_end = keys.after_prefix(self._prefix)
        self._stored = StoredBatches(store, key, rows=rows)
        self._listeners: dict[int, Callable[[], None]] = {}
        self._listener_number = 0
        self.settings = settings
        self.is_closed = False
        self.is_moving = False
        """Whether a reassignment is copying the log to another leader; no stored batch may change meanwhile."""
        self.appended_bytes = 0
        """Bytes appended since the log was opened; a waiting fetch measures new data by it."""
        try:
            self.producers = ProducerState(store, key, limit=producers_limit)
            extent = self._stored.open_extent(tolerates_damage=True)
            self._positions, self.segments, self._next_offset, self._unindexed_bytes, self._leader_epochs = extent
            self._old_batches = OldBatches(
                store, self._prefix, self._next_offset, self.reader, on_found=self.notify, report=self._report
            )
        except (KafkaError, struct.error) as error:
            raise StorageFailure(f"the log of partition {self.name} is damaged: {error}") from error
        self._leader_epoch = -1
        self._lead_first(leader_epoch)
        self._max_timestamp_ms = self.segments.newest_timestamp_ms
        self._has_unreachable = self._positions.start_offset > 0
        self._reported_damage = ""
        self._tail = tails.open(key, self._next_offset)

    def _lead_first(self, leader_epoch: int) -> None:
        try:
            self.leader_epoch = leader_epoch
        except LeaderEpochWentBack as problem:
            # The rows are stored, so that the next registration of this node says which epoch it has seen.
            if not self._leader_epochs.is_stored:
                self._store.write(list(self._leader_epochs.writes(self._prefix)))
            text = (
                f"the log of partition {self.name} cannot be led: {problem}. The coordinator's store is older than "
                "this leader's: restart this leader, which then reports its epoch to the coordinator"
            )
            raise StorageFailure(text) from problem

    # state

    @property
    def name(self) -> str:
        """The partition's name in log and error texts: topic id and number."""
        return f"{topic_id_text(self._key.topic_id)}-{self._key.partition}"

    @property
    def topic_partition(self) -> TopicPartition:
        return self._key

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of this node for the partition; its batches carry it."""
        return self._leader_epoch

    @leader_epoch.setter
    def leader_epoch(self, leader_epoch: int) -> None:
        """Raises LeaderEpochWentBack where the log has batches of a newer epoch."""
        if leader_epoch != self._leader_epoch:
            self._leader_epochs.lead(leader_epoch, self._next_offset)
            self._leader_epoch = leader_epoch

    @property
    def leader_epochs(self) -> Sequence[EpochEntry]:
        """See TopicLog."""
        return self._leader_epochs.entries

    def encoded_leader_epochs(self) -> bytes:
        """See TopicLog."""
        return self._leader_epochs.encoded()

    @property
    def log_start_offset(self) -> int:
        return self._positions.start_offset

    @property
    def first_dirty_offset(self) -> int:
        """The end of the compacted part: compaction has processed all records below."""
        return max(self._positions.first_dirty_offset, self._positions.start_offset)

    @property
    def high_watermark(self) -> int:
        return self._next_offset

    @property
    def last_stable_offset(self) -> int:
        oldest = self.producers.open.oldest()
        return self._next_offset if oldest is None else max(oldest.first_offset, self._positions.start_offset)

    @property
    def has_brokers_epochs(self) -> bool:
        """See TopicLog."""
        return False

    async def diverging_offset(self, known: Sequence[EpochEntry], end_offset: int) -> int | None:
        """See TopicLog."""
        return diverging_offset(self, known, end_offset)

    async def refresh(self) -> None:
        """See TopicLog; this node is the only one that changes the log."""

    @property
    def size_bytes(self) -> int:
        """See ServedLog."""
        return self.segments.size_bytes

    @property
    def stable_bytes(self) -> int:
        """`appended_bytes` up to the last stable offset."""
        oldest = self.producers.open.oldest()
        return self.appended_bytes if oldest is None else oldest.bytes_before

    @property
    def validated_from(self) -> int:
        """See TopicLog."""
        return self._old_batches.validated_from

    def readable(self, batches: Sequence[StoredBatch]) -> ReadableBatches:
        """See TopicLog."""
        return self._old_batches.readable(batches)

    def aborted_transactions(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """See TopicLog."""
        return self.producers.aborted.find(first_offset, end_offset)

    def add_listener(self, listener: Callable[[], None], *, read_committed: bool = False) -> Callable[[], None]:
        """See TopicLog; the listener is also called when the log closes."""
        self._listener_number += 1
        number = self._listener_number
        self._listeners[number] = listener

        def remove() -> None:
            self._listeners.pop(number, None)

        return remove

    def notify(self) -> None:
        """Calls the listeners in the order in which they came."""
        for number, listener in list(self._listeners.items()):
            if number not in self._listeners:
                continue
            try:
                listener()
            except Exception as error:  # one listener's bug must not keep the others asleep
                report_contained_bug(f"a listener of partition {self.name} failed unexpectedly", error)

    def close(self) -> None:
        """Closes the log in memory, because this node no longer leads it or its topic was deleted."""
        self.is_closed = True
        self._old_batches.close()
        self._tails.forget(self._key)
        self.notify()
        self._listeners.clear()

    # appending

    def begin(self, now_ms: int) -> PendingAppends:
        """An empty PendingAppends for one turn of appends."""
        segments = PendingSegments(self.segments.active, self.settings, now_ms, self._prefix)
        return PendingAppends(self._next_offset, self._max_timestamp_ms, self._unindexed_bytes, segments)

    def prepare(
        self,
        batch: CheckedBatch,
        now_ms: int,
        pending: PendingAppends,
        transactional: TransactionalAppend | None = None,
    ) -> Appended:
        """Adds a validated batch to `pending`; KafkaError where it must not be appended.

        A duplicate of one of the producer's last batches is answered with the offset and time of the stored batch.
        Transactional batches need `transactional`.
        """
        records, header, newest_ms = batch
        settings = self.settings
        if header.size > settings.segment_bytes:
            text = f"the record batch has {header.size} bytes; segment.bytes allows {settings.segment_bytes}"
            raise KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE, text)
        log_append_time_ms = now_ms if settings.log_append_time else NO_TIMESTAMP
        is_transactional = header.is_transactional
        if header.has_producer_id:
            duplicate = self.producers.admit(
                header, pending, transactional, appended_bytes=self.appended_bytes, now_ms=now_ms
            )
            if duplicate is not None:
                if settings.log_append_time:
                    log_append_time_ms = self._append_time_ms(duplicate, pending, now_ms)
                return Appended(duplicate, log_append_time_ms, self.log_start_offset)
        elif is_transactional:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "a transactional batch must have a producer id")
        base_offset = pending.next_offset
        max_timestamp_ms = now_ms if settings.log_append_time else newest_ms
        if max_timestamp_ms == header.max_timestamp_ms and settings.log_append_time == header.is_log_append_time:
            data = patch(records, base_offset, self.leader_epoch)
        else:
            data = patch_times(
                records, base_offset, self.leader_epoch, max_timestamp_ms, log_append_time=settings.log_append_time
            )
        last_offset = base_offset + header.last_offset_delta
        stored = StoredBatch(base_offset, last_offset, data, False, is_transactional, header.producer_id)
        pending.add(stored, max_timestamp_ms)
        return Appended(base_offset, log_append_time_ms, self.log_start_offset)

    def _append_time_ms(self, base_offset: int, pending: PendingAppends, now_ms: int) -> int:
        """The time of a batch of the log or of `pending`; `now_ms` where the batch was removed or cannot be read."""
        batches = [batch for batch in pending.batches if batch.base_offset == base_offset]
        if base_offset < self._next_offset:
            with suppress(StorageFailure):
                batches = self.read(base_offset, 1)
        if not batches or batches[0].base_offset != base_offset:
            return now_ms
        return read_header(batches[0].data).max_timestamp_ms

    def prepare_end(self, end: EndTransaction, now_ms: int, pending: PendingAppends) -> None:
        """Adds the marker that ends a producer's transaction to `pending`, unless the log already has that outcome.

        KafkaError INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED.
        """
        if not self.producers.end_transaction(end, pending, now_ms=now_ms):
            return
        offset = pending.next_offset
        marker = build_end_transaction_marker(
            base_offset=offset,
            leader_epoch=self.leader_epoch,
            timestamp_ms=now_ms,
            producer_id=end.producer_id,
            producer_epoch=end.producer_epoch,
            committed=end.committed,
            coordinator_epoch=end.coordinator_epoch,
            log_append_time=self.settings.log_append_time,
        )
        pending.add(StoredBatch(offset, offset, marker, True, True, end.producer_id), now_ms)

    def writes(self, pending: PendingAppends) -> Iterator[Write]:
        """The writes that must become durable atomically before `commit`."""
        # Compaction replaces batches one by one, and would leave holes in files of appended ones.
        write_of = Write if self.settings.compacts else AppendedWrite
        for batch in pending.batches:
            yield write_of(keys.LOG, keys.long_key(self._prefix, batch.base_offset), batch.data)
        if pending.batches and not self._leader_epochs.is_stored:
            yield from self._leader_epochs.writes(self._prefix)
        yield from self.producers.writes(pending)
        for timestamp_ms, end_offset in pending.index.items():
            value = keys.timestamp_value(end_offset)
            yield Write(keys.TIMESTAMPS, keys.timestamp_key(self._prefix, timestamp_ms), value)
        yield from pending.segments.writes(self._prefix)
        if pending.batches:
            yield from self._old_batches.writes()

    def commit(self, pending: PendingAppends) -> None:
        """Makes the batches readable; call `notify` when all logs of the turn are committed."""
        if pending.batches and not self._leader_epochs.is_stored:
            self._leader_epochs.appended()
        self._next_offset = pending.next_offset
        self._max_timestamp_ms = pending.max_timestamp_ms
        self._unindexed_bytes = pending.unindexed_bytes
        self.segments.commit(pending.segments)
        self.producers.commit(pending)
        self.appended_bytes += pending.size_bytes
        if pending.batches:
            self._old_batches.committed()
        self._tails.extend(self._key, pending.batches)

    # reading

    def read(
        self, fetch_offset: int, max_bytes: int, *, at_least_one: bool = True, read_committed: bool = False
    ) -> list[StoredBatch]:
        """See TopicLog.read; without `at_least_one` nothing is returned where the first batch is above `max_bytes`.

        A fetch offset below the log start offset reads from the log start offset.
        """
        if max_bytes <= 0 and not at_least_one:
            return []
        fetch_offset = max(fetch_offset, self._positions.start_offset)
        if fetch_offset >= self._tail.start_offset:
            self._tails.touch(self._key)
            return self._tail.read(fetch_offset, max_bytes, at_least_one=at_least_one)
        found: list[StoredBatch] = []
        try:
            for batch in self._stored.from_offset(fetch_offset, self._next_offset):
                max_bytes -= len(batch.data)
                if max_bytes < 0 and (found or not at_least_one):
                    break
                found.append(batch)
                if max_bytes <= 0:
                    break
        except StorageFailure as failure:
            if found:
                return found  # the next read starts at the failure
            self._report_damage(fetch_offset, failure)
            raise
        return found

    def epoch_at(self, offset: int) -> int:
        """See ServedLog; from the history, so that a damaged batch hides no offset."""
        return epoch_at(self.leader_epochs, offset)

    async def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """See TopicLog. KafkaError CORRUPT_MESSAGE where a batch cannot be opened or its header is wrong."""
        if timestamp_ms > self._max_timestamp_ms:
            return None
        contradicting_bytes = 0
        start_offset = self._positions.start_offset
        position = max(self._stored.indexed_offset_before(timestamp_ms), start_offset)
        async for batch, header in self._scan_newer(timestamp_ms, position):
            found = await self.reader.first_record(batch, header, timestamp_ms, start_offset)
            if found is not None:
                return found
            if batch.base_offset >= start_offset:  # else the header's timestamp may be of a deleted record
                contradicting_bytes += len(batch.data)
            if contradicting_bytes > LOOKUP_LIMIT_BYTES:
                text = f"batches before offset {batch.last_offset + 1} have timestamps that contradict their headers"
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, text)
        return None

    async def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """The first record of the greatest timestamp; None where no record has one. Errors as above."""
        best: TimestampOffset | None = None
        for segment in self.segments.by_newest():
            if best is not None and segment.largest_timestamp_ms < best.timestamp_ms:
                break
            found = await self._newest_in(segment)
            if found is not None and (
                best is None or (-found.timestamp_ms, found.offset) < (-best.timestamp_ms, best.offset)
            ):
                best = found
        return best

    async def _scan_newer(self, timestamp_ms: int, position: int) -> AsyncIterator[tuple[StoredBatch, BatchHeader]]:
        """The batches from `position` on whose headers say that they have a record at `timestamp_ms` or newer."""
        newer = [segment for segment in self.segments if segment.largest_timestamp_ms >= timestamp_ms]
        for segment in newer:
            async for batch, header in self._scan(max(position, segment.base_offset), segment.end_offset):
                if header.max_timestamp_ms >= timestamp_ms:
                    yield batch, header

    async def _scan(self, position: int, end_offset: int) -> AsyncIterator[tuple[StoredBatch, BatchHeader]]:
        """Stored batches and their headers; yields to the event loop after each slice of LOOKUP_SLICE_BYTES.

        KafkaError NOT_LEADER_OR_FOLLOWER where the log was closed meanwhile.
        """
        while position < end_offset:
            batches = self._stored.slice_from(position, end_offset, LOOKUP_SLICE_BYTES)
            if not batches:
                return
            position = batches[-1].last_offset + 1
            for batch in batches:
                yield batch, read_header(batch.data)
            await asyncio.sleep(0)
            if self.is_closed:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the log of partition {self.name} was closed")

    async def _newest_in(self, segment: Segment) -> TimestampOffset | None:
        """The first record with the segment's newest timestamp; the segment is scanned where part of it was removed."""
        start_offset = self._positions.start_offset
        if segment.newest_base_offset >= start_offset:
            batches = self.read(segment.newest_base_offset, 1)
            if batches and batches[0].base_offset == segment.newest_base_offset:
                header = read_header(batches[0].data)
                if header.max_timestamp_ms == segment.largest_timestamp_ms:
                    return await self._first_newest(batches[0], header, header.max_timestamp_ms, start_offset)
        best: tuple[StoredBatch, BatchHeader] | None = None
        best_ms = NO_TIMESTAMP
        async for batch, header in self._scan(max(start_offset, segment.base_offset), segment.end_offset):
            newest_ms = header.max_timestamp_ms
            if newest_ms > best_ms and batch.base_offset < start_offset and not header.is_log_append_time:
                newest_ms = await self.reader.newest_timestamp(batch, start_offset)
            if newest_ms > best_ms:
                best, best_ms = (batch, header), newest_ms
        return None if best is None else await self._first_newest(*best, best_ms, start_offset)

    async def _first_newest(
        self, batch: StoredBatch, header: BatchHeader, newest_ms: int, start_offset: int
    ) -> TimestampOffset:
        found = await self.reader.first_record(batch, header, newest_ms, start_offset)
        if found is None:
            text = f"the batch at offset {batch.base_offset} has timestamps that contradict its header"
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, text)
        return found

    def _report_damage(self, offset: int, failure: StorageFailure) -> None:
        """Reports each damaged place once, however often clients read there."""
        text = f"partition {self.name} cannot be read at offset {offset}: {failure}"
        if text != self._reported_damage:
            self._reported_damage = text
            self._report(text)

    # deletion

    def plan_start(self, start_offset: int) -> StartChange | None:
        """The writes that move the log start to `start_offset`; None where the log starts there or later already.

        KafkaError OFFSET_OUT_OF_RANGE above the high watermark. StorageFailure.
        """
        if start_offset > self._next_offset:
            text = f"partition {self.name} cannot start at offset {start_offset}: it ends at {self._next_offset}"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, text)
        if start_offset <= self._positions.start_offset:
            return None
        positions = Positions(start_offset, self._positions.first_dirty_offset)
        change = plan_start(self.segments, positions, self._next_offset, self._prefix)
        change.writes.extend(self._leader_epochs.removals(start_offset, self._prefix))
        return change

    def commit_start(self, change: StartChange) -> None:
        """Applies a durable change of the start offset; nothing below is readable afterwards. Call `notify` then."""
        self._positions = change.positions
        self.segments.remove(change.gone, self._next_offset)
        self._max_timestamp_ms = self.segments.newest_timestamp_ms
        self._tails.drop_before(self._key, change.positions.start_offset)
        self._leader_epochs.forget_below(change.positions.start_offset)
        self._has_unreachable = True

    def remove_unreachable(self) -> bool:
        """Frees the disk of what a log that begins at its start offset does not need; StorageFailure.

        Returns whether there were batches below. Entries of the index of timestamps are removed here as well, because
        there is one for each MiB: until then look-ups begin at the start offset instead.
        """
        if not self._has_unreachable:
            return False
        self._settle()
        start_offset = self._positions.start_offset
        # Keys alone, so that a damaged batch keeps nothing on the disk. The last batch that begins at or before the
        # start stays, as it may hold the start; in an empty log none does.
        is_empty = start_offset >= self._next_offset
        first_offset = start_offset if is_empty else max(self._stored.base_offset_before(start_offset), 0)
        # After a restart there is usually nothing below; a scan finds that out without a write.
        found = self._stored.base_offset_before(first_offset - 1) >= 0
        writes, ranges = self._stored.useless_index(start_offset, self.segments.newest_timestamp_ms)
        if writes:  # before the entries that it replaces are removed: an opened log is read from the end of its index
            self._store.write(writes)
        if found:
            self.producers.aborted.forget_before(start_offset)
            ranges.append(KeyRange(keys.LOG, self._prefix, keys.long_key(self._prefix, first_offset)))
        if ranges:
            self._store.delete_ranges(ranges)
        self._has_unreachable = False
        return found

    def stored_batches(self, start_offset: int, end_offset: int) -> Iterator[StoredBatch]:
        """Batches on disk for compaction; the store must not be written while the iterator is in use."""
        return self._stored.from_offset(start_offset, end_offset)

    def rewrite(
        self,
        batches: Mapping[int, StoredBatch | None],
        segments: Sequence[Segment],
        merged: Segment,
        *,
        removed_markers: Sequence[int] = (),
    ) -> None:
        """Replaces batches by base offset (None: removed) and closed `segments` by one; one write. StorageFailure.

        `removed_markers` are the offsets of the removed batches that are control batches.
        """
        self._settle()
        writes = [
            Write(keys.LOG, keys.long_key(self._prefix, base_offset), None if batch is None else batch.data)
            for base_offset, batch in batches.items()
        ]
        writes += [
            Write(keys.SEGMENTS, keys.long_key(self._prefix, segment.base_offset), None) for segment in segments[1:]
        ]
        writes += self.producers.aborted.removals(removed_markers)
        newest_ms = max(self.segments.newest_without(segments), merged.largest_timestamp_ms)
        lowered = self._stored.lowered_index(newest_ms)
        self._store.write([*writes, segment_write(self._prefix, merged), *lowered])
        self.producers.aborted.forget(removed_markers)
        self.segments.replace(segments, merged)
        self._max_timestamp_ms = newest_ms
        self._tails.replace(self._key, batches)

    def thin_index(self, cuts: Sequence[int], first_ms: int) -> int | None:
        """Leaves one entry of the timestamp index before each of the offsets `cuts`, in one write; StorageFailure.

        Processes the entries from the timestamp `first_ms` on, at most INDEX_SLICE of them, and returns where to go on;
        None at the end.
        """
        self._settle()
        crowded, next_ms = self._stored.crowded_index_keys(cuts, first_ms, INDEX_SLICE)
        if crowded:
            self._store.write([Write(keys.TIMESTAMPS, key, None) for key in crowded])
        return next_ms

    def mark_clean(self, first_dirty_offset: int) -> None:
        """Stores that compaction has processed all records below `first_dirty_offset`; StorageFailure."""
        self._settle()
        positions = Positions(self._positions.start_offset, first_dirty_offset)
        self._store.write([Write(keys.POSITIONS, self._prefix, encode_positions(positions))])
        self._positions = positions
