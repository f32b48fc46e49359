"""The log of one partition of an existing cluster, as share-partitions read it: `ports.ServedLog` over windows.

Reads are synchronous and are answered from memory. What is missing is fetched by `LogFetcher`, which asks `next_fetch`
what to fetch and hands every answer to `take`. Groups with `read_committed` and others have a window each, because a
broker tells of aborted transactions only with the former's fetches.

**Truncation.** An unclean election can leave a log with other records at offsets that were read here. Only the brokers'
leader epochs prove it (`find_truncation`): the high watermark may lag after an election (KIP-207), and a follower that
is read from may be behind. A log object never changes its records; `UpstreamLogs` replaces one that was truncated.

**Leader epochs** are known of all records below `epochs_known_to`: they were asked for, or read without a gap since.
The log's end may be known far beyond. There they are asked for before anything is read (`lacks_epochs`): an epoch that
ends before the record that is read would look like a truncation.

**An offset that cannot be fetched** must stop only its own readers. `give_up` drops the demand for it, and wakes the
readers: those that still want it demand it again. It is not fetched ahead of a reader any more. During its back-off
another demand is met (`stalled_offsets`).

**Readers at different places.** A log is fetched ahead of its last reader only. Where the offset there is stalled, the
log's end is fetched for readers that wait at it. What comes there and is not read within TAIL_PAUSE_MS shows that no
reader is that far; then it is fetched no sooner than after that time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kshare_core.contained_bugs import report_contained_bug
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition, topic_id_text
from kshare_core.leader_epochs import (
    LEADER_EPOCHS_LIMIT,
    UNKNOWN_LEADER_EPOCH,
    EpochEntry,
    encode_leader_epochs,
    epoch_at,
)
from kshare_leader.ports import AbortedTransaction, ReadableBatches, StoredBatch, TimestampOffset
from kshare_leader.upstream.pieces import Piece, piece_of
from kshare_leader.upstream.stalled_offsets import StalledOffsets
from kshare_leader.upstream.window import Window, WindowBudget
from kshare_upstream.connection import ConnectionLost, NotServed
from kshare_upstream.partition_log import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    OutcomeUnknown,
    PartitionLog,
    Refused,
)
from kshare_upstream.port import LeaderUnknown, UpstreamPartitionName
from kshare_upstream.sasl import AuthenticationFailed
from kshare_wire.record_batches import leader_epoch_of

INTEREST_MS = 30_000
"""How long a log is fetched after its last read."""
AHEAD_SHARE = 0.5
"""The part of a window that may be filled ahead of its reader."""
AWAITED_FETCH_BYTES = 4 * 1024 * 1024
"""The limit of a fetch that a reader waits for: nothing of an answer is read before all of it is here."""
TAIL_FETCH_BYTES = 16 * 1024
"""The limit of a fetch at the log's end while the offset ahead of the last reader is stalled.

It tells that there are records: a reader that waits for them demands the rest. Larger ones would drop what was fetched
for the other reader.
"""
TAIL_PAUSE_MS = 1_000
"""The pause after such a fetch if no reader has come to the log's end."""
MAX_TIMESTAMP = -3
"""Stands for the greatest timestamp in ListOffsets, version 7 and later."""
NO_ID = bytes(16)
UNREACHABLE = (ConnectionLost, LeaderUnknown, NotServed, AuthenticationFailed, OutcomeUnknown, Refused)
"""What a request to the cluster may end with."""


class TopicReplaced(Exception):
    """The topic that has the name now is another one than the catalog's."""


class FetchPosition(NamedTuple):
    """From where a log is to be fetched next; `is_tail` where nothing is known to be there yet."""

    offset: int
    is_tail: bool
    max_bytes: int
    last_epoch: int
    """The leader epoch of the record before; -1 if it is not known."""


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
    unreadable: Collection[int] = ()
    """Base offsets of batches that no consumer can read."""


class _View:
    """The window of one isolation level, and where it was read last."""

    def __init__(self, limit_bytes: int, budget: WindowBudget) -> None:
        self.window = Window(limit_bytes, budget)
        self.stalled = StalledOffsets()
        self.position: int | None = None
        self.reached = 0
        """The greatest offset to which it was read."""
        self.last_read_ms = 0
        self.grew_ms = -TAIL_PAUSE_MS
        """When a fetch found last that the log ends later than was known."""
        self.arrived_bytes = 0
        self.listeners: dict[object, Callable[[], None]] = {}

    def next_offset(self, log_start: int, log_end: int, limit_bytes: int, now_ms: int) -> tuple[int, int] | None:
        """The offset to fetch next, and at most how many bytes; None where enough is buffered.

        What a read lacks comes first, then what lies ahead of the last reader. Where that is stalled, the log's end.
        """
        ahead_bytes = int(limit_bytes * AHEAD_SHARE)
        for offset in self.window.missing:
            if not self.stalled.is_backing_off(offset, now_ms):
                return offset, min(ahead_bytes, AWAITED_FETCH_BYTES)
        end, buffered_bytes = self._covered(log_start, log_end)
        if end not in self.stalled:
            return (end, ahead_bytes) if buffered_bytes < limit_bytes * AHEAD_SHARE else None
        if not self.listeners or self.stalled.is_backing_off(log_end, now_ms) or self.tail_pause_ms(log_end, now_ms):
            return None
        return log_end, min(ahead_bytes, TAIL_FETCH_BYTES)

    def tail_pause_ms(self, log_end: int, now_ms: int) -> int:
        """How long the log's end is not fetched yet, because no reader has come there."""
        return max(0, self.grew_ms + TAIL_PAUSE_MS - now_ms) if self.listeners and self.reached < log_end else 0

    def give_up(self, offset: int, now_ms: int) -> int:
        """Returns the back-off in milliseconds."""
        self.window.forget_missing(offset)
        return self.stalled.failed(offset, now_ms)

    def _covered(self, log_start: int, log_end: int) -> tuple[int, int]:
        """`Window.covered` of the last reader's position; of the log's end before the first read."""
        return self.window.covered(log_end if self.position is None else max(self.position, log_start))


class UpstreamLog:
    """Implements ports.ServedLog; `open` before use, which readers wait for with `refresh`."""

    has_brokers_epochs = True
    size_bytes = 0

    def __init__(
        self,
        topic_partition: TopicPartition,
        log: PartitionLog,
        *,
        window_limit_bytes: int,
        now_ms: Callable[[], int],
        on_demand: Callable[[UpstreamLog, bool], None],
        budget: WindowBudget,
        leader_epoch: int = UNKNOWN_LEADER_EPOCH,
        on_truncated: Callable[[UpstreamLog], None] = lambda log: None,
    ) -> None:
        """`on_demand` is called when something is to be fetched that no fetch under way brings.

        Its second argument tells whether a reader waits for it; else it lies ahead of all readers. `on_truncated` is
        called when the log turns out to have other records than before, outside of `find_truncation`.
        """
        self.topic_partition = topic_partition
        self.leader_epoch = leader_epoch
        """The epoch of this leader in the catalog; it fences the share-partitions' states."""
        self.topic_id = NO_ID
        """The topic's id in the cluster where it has ids."""
        self._expected_topic_id = topic_partition.topic_id
        self.log_start_offset = 0
        self.high_watermark = 0
        self.last_stable_offset = 0
        self.validated_from = 0
        """All batches are readable until one was found that is not."""
        self.is_closed = False
        self.leader_epochs: list[EpochEntry] = []
        self.epochs_known_to = 0
        """The offset below which `leader_epochs` has the epochs of all records."""
        self._epoch_of_end = UNKNOWN_LEADER_EPOCH
        """The epoch of the leader when they were learned up to the log's end: what came since is of this one, as long
        as it is the leader's."""
        self._encoded_leader_epochs: bytes | None = None
        self._log = log
        self._now_ms = now_ms
        self._on_demand = on_demand
        self._on_truncated = on_truncated
        self._limit_bytes = window_limit_bytes
        self._budget = budget
        self._views = {False: _View(window_limit_bytes, budget), True: _View(window_limit_bytes, budget)}
        self._opened = asyncio.Event()

    # State

    @property
    def at(self) -> UpstreamPartitionName:
        return self._log.at

    @property
    def name(self) -> str:
        return f"{topic_id_text(self.topic_partition.topic_id)}-{self.topic_partition.partition}"

    @property
    def is_open(self) -> bool:
        return self._opened.is_set() and not self.is_closed

    @property
    def is_followed(self) -> bool:
        """Whether fetches tell where the log ends."""
        return any(self.next_fetch(read_committed=each) is not None for each in self._views)

    @property
    def appended_bytes(self) -> int:
        return self._views[False].arrived_bytes

    @property
    def stable_bytes(self) -> int:
        return self._views[True].arrived_bytes

    def encoded_leader_epochs(self) -> bytes:
        if self._encoded_leader_epochs is None:
            self._encoded_leader_epochs = encode_leader_epochs(self.leader_epochs)
        return self._encoded_leader_epochs

    # Opening

    async def open(self) -> None:
        """Learns where the log begins and ends, and its leader epochs. UNREACHABLE, TopicReplaced."""
        await self._check_topic()
        await self._learn()
        self._opened.set()
        self._on_demand(self, True)

    def close(self) -> None:
        """Nothing is read any more, because the log was replaced or this node does not lead it."""
        self.is_closed = True
        self._opened.set()
        for view in self._views.values():
            view.window.clear()
        self._notify()
        for view in self._views.values():
            view.listeners.clear()

    async def refresh(self) -> None:
        await self._wait_until_open()
        try:
            truncated_at = await self.learn_epochs()
        except (*UNREACHABLE, TopicReplaced) as error:
            text = f"where partition {self.at} of the existing cluster ends is not known: {error}"
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, text) from error
        if truncated_at is not None:
            self._on_truncated(self)
            text = f"partition {self.at} of the existing cluster has lost records from offset {truncated_at} on"
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, text)

    def note_offsets(self, *, start: int | None, end: int | None) -> None:
        """Takes where the log begins and ends from an answer for many partitions."""
        if start is not None:
            self._start_at(start)
        if end is not None and end > self.high_watermark:
            self.high_watermark = end
            self._notify()

    async def _wait_until_open(self) -> None:
        await self._opened.wait()
        if self.is_closed:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the log of partition {self.at} was closed")

    def expect_topic_id(self, topic_id: bytes) -> None:
        """Takes the topic's id in the cluster, as the catalog has it; with NO_ID the cluster's topic may have any.

        A log that was opened while the cluster had no ids is fetched by this id from now on.
        """
        if topic_id == self._expected_topic_id:
            return
        self._expected_topic_id = topic_id
        if self.topic_id == NO_ID:
            self.topic_id = topic_id

    async def _check_topic(self) -> None:
        found, expected = await self._log.topic_id(), self._expected_topic_id
        if NO_ID not in (found, expected) and found != expected:
            text = (
                f"topic {self.at.topic} has the id {topic_id_text(found)}, but {topic_id_text(expected)} in the catalog"
            )
            raise TopicReplaced(text)
        self.topic_id = found

    async def _learn(self) -> None:
        end, epoch_of_end = await self._learn_ends()
        epochs = await self._log.leader_epochs(epoch_of_end)  # only then, so that no epoch below the end is missing
        newest = epochs[-1][0] if epochs else UNKNOWN_LEADER_EPOCH
        read_since = [entry for entry in self.leader_epochs if entry.leader_epoch > newest]
        self.leader_epochs = [*(EpochEntry(*entry) for entry in epochs), *read_since][-LEADER_EPOCHS_LIMIT:]
        self.epochs_known_to = max(self.epochs_known_to, end)
        self._epoch_of_end = epoch_of_end
        self._encoded_leader_epochs = None

    def _has_epochs_to(self, end: int, leader_epoch: int) -> bool:
        """Whether the epochs are known up to `end`, which a leader of this epoch told."""
        if end <= self.epochs_known_to:
            return True
        newest = self.leader_epochs[-1].leader_epoch if self.leader_epochs else UNKNOWN_LEADER_EPOCH
        if leader_epoch == UNKNOWN_LEADER_EPOCH or leader_epoch != self._epoch_of_end or leader_epoch < newest:
            return False
        if newest < leader_epoch:
            self.leader_epochs.append(EpochEntry(leader_epoch, self.epochs_known_to))
            del self.leader_epochs[:-LEADER_EPOCHS_LIMIT]
            self._encoded_leader_epochs = None
        self.epochs_known_to = end
        return True

    async def _learn_ends(self) -> tuple[int, int]:
        """Returns the end of the log, also where a later one was known, and the epoch of the leader that told it.

        A broker answers it only when its high watermark has reached the records of earlier leaders.
        """
        start, stable, (end, leader_epoch) = await asyncio.gather(
            self._log.offset_at(EARLIEST_TIMESTAMP),
            self._log.offset_at(LATEST_TIMESTAMP, read_committed=True),
            self._log.end(),
        )
        self._start_at(start)
        self.high_watermark = max(self.high_watermark, end)
        self.last_stable_offset = max(self.last_stable_offset, stable)
        return end, leader_epoch

    def _start_at(self, log_start_offset: int) -> None:
        if log_start_offset > self.log_start_offset:
            self.log_start_offset = log_start_offset
            for view in self._views.values():
                view.window.forget_missing_below(log_start_offset)
                view.stalled.forget(0, log_start_offset)

    # Truncation

    async def diverging_offset(self, known: Sequence[EpochEntry], end_offset: int) -> int | None:
        await self._wait_until_open()
        newest = self.leader_epochs[-1].leader_epoch if self.leader_epochs else UNKNOWN_LEADER_EPOCH
        is_of_newest_epoch = bool(known) and known[-1].leader_epoch == newest
        known_to = min(self.epochs_known_to, self.high_watermark)
        if end_offset <= self.log_start_offset or (is_of_newest_epoch and end_offset <= known_to):
            return None
        try:
            return await self._diverging_offset(known, end_offset)
        except UNREACHABLE as error:
            text = f"which records partition {self.at} of the existing cluster has is not known: {error}"
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, text) from error

    async def learn_epochs(self) -> int | None:
        """Learns the epochs up to the log's end; as `find_truncation` where there was an election meanwhile."""
        if self._has_epochs_to(*await self._learn_ends()):
            return None
        return await self.find_truncation()

    async def find_truncation(self) -> int | None:
        """The first offset whose record is not what was read here; None if there is none. UNREACHABLE, TopicReplaced.

        In the latter case the log's start, end and leader epochs are learned anew.
        """
        await self._check_topic()
        offset = await self._diverging_offset(self.leader_epochs, min(self.epochs_known_to, self.high_watermark))
        if offset is None:
            await self._learn()
            if self.epochs_known_to < self.high_watermark:  # is all there that was known to be, though it was not read?
                offset = await self._diverging_offset(self.leader_epochs, self.high_watermark)
        return offset

    async def _diverging_offset(self, known: Sequence[EpochEntry], end_offset: int) -> int | None:
        """Asks the broker for the end of each epoch from the newest on, until there is one that the log has too.

        An epoch that is older than all of the log's ends where the log begins. One that is newer than all of them means
        that the broker is not the leader any more, because the newest epoch is always the leader's own.
        """
        shared_end, end_of_known = 0, end_offset
        for entry in reversed(known or [EpochEntry(await self._newest_epoch(), 0)]):
            epoch, end = await self._log.end_of_epoch(entry.leader_epoch)
            if epoch == UNKNOWN_LEADER_EPOCH:
                raise OutcomeUnknown(f"the leader of partition {self.at} does not know its epoch {entry.leader_epoch}")
            if epoch == entry.leader_epoch:
                shared_end = min(end_of_known, end)
                break
            end_of_known = entry.start_offset
        shared_end = max(shared_end, self.log_start_offset)
        return shared_end if shared_end < end_offset else None

    async def _newest_epoch(self) -> int:
        epochs = await self._log.leader_epochs(limit=1)
        return epochs[-1][0] if epochs else 0

    def epoch_at(self, offset: int) -> int:
        return epoch_at(self.leader_epochs, offset)

    # Reading

    def readable(self, batches: Sequence[StoredBatch]) -> ReadableBatches:
        return ReadableBatches([batch for batch in batches if not batch.is_unreadable], None)

    def read(
        self, fetch_offset: int, max_bytes: int, *, at_least_one: bool = True, read_committed: bool = False
    ) -> list[StoredBatch]:
        """See ServedLog.read; nothing where the records are not here yet, and listeners are called when they are."""
        view = self._views[read_committed]
        fetch_offset = max(fetch_offset, self.log_start_offset)
        found = view.window.read(fetch_offset, max_bytes)
        view.last_read_ms = self._now_ms()
        view.position = found[-1].last_offset + 1 if found else fetch_offset
        view.reached = max(view.reached, view.position)
        if self.next_fetch(read_committed=read_committed) is not None:
            self._on_demand(self, not found)
        if not at_least_one and found and found[0].length > max_bytes:
            return []
        return found

    def aborted_transactions(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        return self._views[True].window.aborted_transactions(first_offset, end_offset)

    async def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        try:
            found = TimestampOffset(*await self._log.find_timestamp(timestamp_ms))
        except UNREACHABLE as error:
            text = f"partition {self.at} of the existing cluster cannot be searched by time: {error}"
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, text) from error
        return None if found.offset < 0 else found

    async def offset_of_max_timestamp(self) -> TimestampOffset | None:
        return await self.offset_for_timestamp(MAX_TIMESTAMP)

    def add_listener(self, listener: Callable[[], None], *, read_committed: bool = False) -> Callable[[], None]:
        """See TopicLog.add_listener; while there is a listener the log is fetched for its isolation level."""
        token, listeners = object(), self._views[read_committed].listeners
        listeners[token] = listener
        self._on_demand(self, True)

        def remove() -> None:
            listeners.pop(token, None)

        return remove

    def _notify(self) -> None:
        for view in self._views.values():
            for listener in list(view.listeners.values()):
                try:
                    listener()
                except Exception as error:  # one listener's bug must not keep the others asleep
                    report_contained_bug(f"a listener of partition {self.name} failed unexpectedly", error)

    # Fetching

    def lacks_epochs(self, position: FetchPosition) -> bool:
        """Whether the epochs of the records before a position are to be asked for first (`find_truncation`)."""
        return position.offset > self.epochs_known_to

    def next_fetch(self, *, read_committed: bool) -> FetchPosition | None:
        """What to fetch next for an isolation level; None without readers, or when enough is buffered."""
        view = self._views[read_committed]
        was_read = view.position is not None and self._now_ms() - view.last_read_ms <= INTEREST_MS
        if not self.is_open or not (was_read or view.listeners):
            return None
        end = self._end(read_committed)
        limit_bytes = min(self._limit_bytes, self._budget.share_bytes)
        found = view.next_offset(self.log_start_offset, end, limit_bytes, self._now_ms())
        if found is None:
            return None
        offset = max(found[0], self.log_start_offset)
        last_epoch = self.epoch_at(offset - 1) if offset > self.log_start_offset else UNKNOWN_LEADER_EPOCH
        return FetchPosition(offset, offset >= end, found[1], last_epoch)

    def tail_pause_ms(self, *, read_committed: bool) -> int:
        """After how long `next_fetch` may have something that it has not now, though nothing happens; 0 for never."""
        return self._views[read_committed].tail_pause_ms(self._end(read_committed), self._now_ms())

    def _end(self, read_committed: bool) -> int:
        return self.last_stable_offset if read_committed else self.high_watermark

    def give_up(self, offset: int, *, read_committed: bool) -> int:
        """A fetch of this offset failed or brought nothing, though the log has records there; returns the back-off.

        In milliseconds. Until then it is not fetched, even if readers demand it again.
        """
        pause_ms = self._views[read_committed].give_up(offset, self._now_ms())
        self._notify()
        return pause_ms

    @property
    def is_stalled(self) -> bool:
        """Whether a reader is stopped at an offset that cannot be fetched."""
        return any([view.stalled.has_any(self._now_ms()) for view in self._views.values()])

    def take(self, fetched: Fetched, *, read_committed: bool) -> bool:
        """Takes a broker's answer, and returns whether it has a whole batch.

        KafkaError CORRUPT_MESSAGE where its records are damaged; where the log ends is taken all the same.
        """
        before = self.high_watermark, self.last_stable_offset
        known_end = self._end(read_committed)
        self._start_at(fetched.log_start_offset)
        self.high_watermark = max(self.high_watermark, fetched.high_watermark)
        if read_committed:
            self.last_stable_offset = max(self.last_stable_offset, fetched.last_stable_offset)
        piece = piece_of(fetched.fetch_offset, fetched.records, fetched.aborted, fetched.unreadable)
        # A broker looks up both offsets before it reads the records, and may answer with records beyond them (Kafka's
        # Partition.readRecords). All that consumers get is below them all the same.
        end_offset = piece.end_offset if piece is not None else 0
        self.high_watermark = max(self.high_watermark, end_offset)
        if read_committed:
            self.last_stable_offset = max(self.last_stable_offset, end_offset)
        view = self._views[read_committed]
        if self._end(read_committed) > known_end:
            view.grew_ms = self._now_ms()
        if fetched.unreadable:
            self.validated_from = max(self.validated_from, end_offset)
        if piece is not None:
            if fetched.fetch_offset <= self.epochs_known_to:
                self._note_leader_epochs(piece)
                self.epochs_known_to = max(self.epochs_known_to, piece.end_offset)
            view.window.add(piece)
            view.stalled.forget(piece.first_offset, piece.end_offset)
            view.arrived_bytes += sum(batch.length for batch in piece.batches)
        if piece is not None or before != (self.high_watermark, self.last_stable_offset):
            self._notify()
        return piece is not None

    def _note_leader_epochs(self, piece: Piece) -> None:
        newest = self.leader_epochs[-1].leader_epoch if self.leader_epochs else UNKNOWN_LEADER_EPOCH
        if leader_epoch_of(piece.batches[-1].data) <= newest:
            return
        for epoch, offset in _epoch_starts(piece.batches):
            if epoch > newest:
                # An epoch that wrote nothing that remained: the leader of the next one had not its records.
                while self.leader_epochs and self.leader_epochs[-1].start_offset >= offset:
                    self.leader_epochs.pop()
                self.leader_epochs.append(EpochEntry(epoch, offset))
                newest = epoch
        del self.leader_epochs[:-LEADER_EPOCHS_LIMIT]
        self._encoded_leader_epochs = None


def _epoch_starts(batches: Iterable[StoredBatch]) -> Iterable[tuple[int, int]]:
    """Each leader epoch with the base offset of its first batch here."""
    last = UNKNOWN_LEADER_EPOCH
    for batch in batches:
        epoch = leader_epoch_of(batch.data)
        if epoch != last:
            yield epoch, batch.base_offset
            last = epoch
