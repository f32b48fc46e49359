"""The counters behind a leader's metrics: plain numbers, updated per call or batch and never per record.

`LeaderMetrics` has one object per topic, per share-partition, per topic of a group, and per group; the code that does
the work adds to these. They stay when a share-partition is unloaded, so that its counters continue and its lag is still
known. They are dropped when its topic is deleted, when another node leads the partition, or when an administrator
replaced the state. `metric_reading` exposes them as metrics.

Acknowledgements are counted when they are durable.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import add
from typing import NamedTuple

from kshare_core.distribution import DURATION_BOUNDS_S, Distribution, no_clock
from kshare_core.identifiers import SharePartitionKey, TopicPartition
from kshare_core.states import AcknowledgeType
from kshare_leader.log.append_times import AppendTimes
from kshare_leader.machine.acknowledgement import AcknowledgementBatch
from kshare_leader.machine.acquisition import AcquiredRecords
from kshare_leader.machine.state_write import NONE_ENDED, EndedDeliveries

DELIVERY_BOUNDS = (1, 2, 3, 4, 5, 10)
AGE_BOUNDS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0, 86_400.0)
SHARE_PARTITIONS_KEPT_LIMIT = 20_000
"""The limit of share-partitions with counts; beyond it the oldest one that is not in memory is evicted."""
GROUPS_KEPT_LIMIT = 20_000
"""The same limit for groups, and for topics of groups."""
SAMPLES_PER_ACKNOWLEDGEMENT = 16
"""The batches per request whose append-to-accept time is sampled; each stands for its neighbours."""

_ACCEPT = bytes([AcknowledgeType.ACCEPT])


class TopicCounts:
    """Counters of one topic's partitions on this leader."""

    __slots__ = (
        "batches_in",
        "bytes_in",
        "fetch_bytes_out",
        "fetch_records_out",
        "records_in",
        "share_fetch_bytes_out",
        "share_fetch_records_out",
    )

    def __init__(self) -> None:
        self.records_in = 0
        self.batches_in = 0
        self.bytes_in = 0
        self.fetch_records_out = 0
        self.fetch_bytes_out = 0
        self.share_fetch_records_out = 0
        self.share_fetch_bytes_out = 0

    def numbers(self) -> list[float]:
        """All counters, to sum up topics beyond the limit of exposed topics."""
        return [getattr(self, name) for name in TOPIC_NUMBERS]


TOPIC_NUMBERS = (
    *("records_in", "batches_in", "bytes_in"),
    *("fetch_records_out", "fetch_bytes_out", "share_fetch_records_out", "share_fetch_bytes_out"),
)


class GroupTopicCounts:
    """Distributions of one topic in one share group: delivery counts of records, and their age when accepted."""

    __slots__ = ("accept_age_s", "deliveries")

    def __init__(self) -> None:
        self.deliveries = Distribution(DELIVERY_BOUNDS)
        self.accept_age_s = Distribution(AGE_BOUNDS_S)


class GroupCounts:
    """Durations of one share group's calls, in seconds."""

    __slots__ = ("acknowledge_s", "fetch_s", "fetch_waited_s")

    def __init__(self) -> None:
        self.fetch_s = Distribution(DURATION_BOUNDS_S)
        self.fetch_waited_s = Distribution(DURATION_BOUNDS_S)
        self.acknowledge_s = Distribution(DURATION_BOUNDS_S)


class HistoryCounts:
    """Counters of the delivery history: its events and their outcomes."""

    __slots__ = ("buffer_bytes", "dropped", "events", "failures", "published", "published_bytes")

    def __init__(self) -> None:
        self.events = 0
        """Events added to the buffer."""
        self.dropped = 0
        """Events that did not fit into the buffer, or that the topic's leader refused."""
        self.published = 0
        """Events that are stored in the topic."""
        self.published_bytes = 0
        """Record batches, compressed."""
        self.failures = 0
        """Failed rounds, which are retried."""
        self.buffer_bytes = 0


class Progress(NamedTuple):
    """The progress of a share-partition: its start offset, and the number of done records from there on."""

    start_offset: int
    delivery_complete_count: int


class _Acknowledged:
    """The acknowledgements in one state write."""

    __slots__ = ("accepted_samples", "records")

    def __init__(self) -> None:
        self.records = [0, 0, 0, 0, 0]
        """Record counts by acknowledge type."""
        self.accepted_samples: list[tuple[int, int]] = []
        """Accepted offsets, each with the number of accepted records that it stands for."""

    def add(self, batches: Sequence[AcknowledgementBatch]) -> None:
        records = self.records
        if len(batches) == 1 and batches[0].acknowledge_types == _ACCEPT:  # the most common by far
            first, last, _ = batches[0]
            records[AcknowledgeType.ACCEPT] += last - first + 1
            self.accepted_samples.append((last, last - first + 1))
            return
        for first, last, types in batches:
            if len(types) == 1:
                records[types[0]] += last - first + 1
            else:
                for acknowledge_type in AcknowledgeType:
                    records[acknowledge_type] += types.count(acknowledge_type)
        stride = len(batches) // SAMPLES_PER_ACKNOWLEDGEMENT + 1
        for first, last, types in batches[::stride]:
            accepted = last - first + 1 if types == _ACCEPT else types.count(AcknowledgeType.ACCEPT)
            if accepted:
                self.accepted_samples.append((last, accepted * stride))


class ShareCounts:
    """Counters of one share-partition, updated by the served partition; they never decrease."""

    __slots__ = (
        "_in_flight",
        "_next_moment",
        "_now",
        "_pending",
        "acknowledged",
        "acquired",
        "append_times",
        "dead_letters",
        "dead_letters_given_up",
        "ended",
        "group_topic",
        "progress",
        "progress_moment",
        "taken_back",
        "topic",
        "truncated",
    )

    def __init__(
        self,
        topic: TopicCounts,
        group_topic: GroupTopicCounts,
        append_times: AppendTimes | None,
        now: Callable[[], float],
        next_moment: Callable[[], int],
    ) -> None:
        self.topic = topic
        self.group_topic = group_topic
        self.append_times = append_times
        self._now = now
        self.acquired = 0
        self.taken_back = 0
        self.acknowledged = [0] * (max(AcknowledgeType) + 1)
        """Durable acknowledgements by acknowledge type."""
        self.ended = EndedDeliveries()
        self.dead_letters = 0
        self.dead_letters_given_up = 0
        self.truncated = 0
        self.progress: Progress | None = None
        """The progress at the last unloading, or as stored; None if unknown. Out of date while loaded."""
        self.progress_moment = 0
        """The `LeaderMetrics.next_moment` at which `progress` was known."""
        self._next_moment = next_moment
        self._pending: _Acknowledged | None = None
        self._in_flight: _Acknowledged | None = None

    def note_acquired(self, records: Iterable[AcquiredRecords]) -> None:
        """Counts the entries of a response, each of which has up to as many records as a client batch may have."""
        fresh = 0
        for first, last, delivery_count in records:
            count = last - first + 1
            self.acquired += count
            self.topic.share_fetch_records_out += count
            if delivery_count == 1:
                fresh += count
            else:
                self.group_topic.deliveries.observe(delivery_count, count)
        if fresh:
            self.group_topic.deliveries.observe(1, fresh)

    def note_taken_back(self, records: Iterable[AcquiredRecords]) -> None:
        """Counts acquisitions that were undone, as their response was not delivered."""
        self.taken_back += sum([last - first + 1 for first, last, _ in records])

    def note_truncated(self, offsets: int) -> None:
        """Counts offsets whose state was truncated, because the log does not have their records."""
        self.truncated += offsets

    def note_acknowledged(self, batches: Sequence[AcknowledgementBatch], *, is_stored: bool) -> None:
        """Counts applied batches: with the write that carries them if `is_stored`, else at once."""
        if is_stored:
            if self._pending is None:
                self._pending = _Acknowledged()
            self._pending.add(batches)
        else:
            at_once = _Acknowledged()
            at_once.add(batches)
            self._count(at_once)

    def write_began(self) -> None:
        """Assigns all acknowledgements until now to this write."""
        self._in_flight, self._pending = self._pending, None

    def write_ended(self, ended: EndedDeliveries | None) -> None:
        """Counts a durable write and the deliveries that it ended; None: the write had no effect."""
        carried, self._in_flight = self._in_flight, None
        if ended is None:
            return
        if carried is not None:
            self._count(carried)
        if ended is not NONE_ENDED:
            self.ended = self.ended.and_also(**ended._asdict())

    def note_dropped(self, progress: Progress | None) -> None:
        """Drops counts of changes that were not durable, at unloading. None: it was not loaded."""
        self._pending = self._in_flight = None
        if progress is not None:
            self.progress, self.progress_moment = progress, self._next_moment()

    def _count(self, carried: _Acknowledged) -> None:
        self.acknowledged = list(map(add, self.acknowledged, carried.records))
        if self.append_times is None or not carried.accepted_samples:
            return
        now, ages = self._now(), self.group_topic.accept_age_s
        for offset, count in carried.accepted_samples:
            appended_at = self.append_times.at(offset)
            if appended_at is not None:
                ages.observe(now - appended_at, count)


class LeaderMetrics:
    """See the module docstring. `now` is a monotonic clock in seconds."""

    def __init__(self) -> None:
        self.now: Callable[[], float] = no_clock
        self.topics: dict[bytes, TopicCounts] = {}
        self.share_partitions: dict[SharePartitionKey, ShareCounts] = {}
        self.group_topics: dict[tuple[str, bytes], GroupTopicCounts] = {}
        self.groups: dict[str, GroupCounts] = {}
        self.log_write_s = Distribution(DURATION_BOUNDS_S)
        self.log_write_failures = 0
        self.history = HistoryCounts()
        self._append_times: dict[TopicPartition, AppendTimes] = {}
        self.is_kept: Callable[[SharePartitionKey], bool] = lambda key: False
        """Whether a share-partition is in memory, so that its counts must stay."""
        self.next_moment = itertools.count(1).__next__
        """A logical clock that orders progress by its age."""
        self._forgotten_moment = 0
        self.on_forgotten: Callable[[], None] = lambda: None
        """Called when the state of a share-partition was replaced."""

    # Logs

    def of_topic(self, topic_id: bytes) -> TopicCounts:
        return self.topics.get(topic_id) or self.topics.setdefault(topic_id, TopicCounts())

    def log_written(self, started_at: float, *, failed: bool) -> None:
        """Counts one write of appends that has ended."""
        self.log_write_s.observe(self.now() - started_at)
        if failed:
            self.log_write_failures += 1

    def appended(self, key: TopicPartition, first_offset: int, end_offset: int, batches: int, size_bytes: int) -> None:
        """Counts batches that are durable and readable."""
        topic = self.of_topic(key.topic_id)
        topic.records_in += end_offset - first_offset
        topic.batches_in += batches
        topic.bytes_in += size_bytes
        self._times_of(key, first_offset).note(end_offset, self.now())

    def logs_closed(self, keys: Mapping[TopicPartition, object]) -> None:
        """Drops counts of closed logs: another node may append now, or the topics are deleted."""
        if not keys:
            return
        for key in keys:
            self._append_times.pop(key, None)
        for share_key in [share_key for share_key in self.share_partitions if share_key.topic_partition in keys]:
            del self.share_partitions[share_key]

    def topic_removed(self, topic_id: bytes) -> None:
        """Drops a deleted topic's counts, after its logs were closed."""
        self.topics.pop(topic_id, None)

    def _times_of(self, key: TopicPartition, end_offset: int) -> AppendTimes:
        return self._append_times.get(key) or self._append_times.setdefault(key, AppendTimes(end_offset))

    # Share-partitions

    def of_share_partition(self, key: SharePartitionKey, log_end_offset: int) -> ShareCounts:
        """The share-partition's counts, with the append times of the log that is open now."""
        append_times = self._times_of(key.topic_partition, log_end_offset)
        counts = self.share_partitions.get(key)
        if counts is None:
            self._make_room()
            group_topic = self.of_group_topic(key.group_id, key.topic_id)
            counts = ShareCounts(self.of_topic(key.topic_id), group_topic, append_times, self.now, self.next_moment)
            self.share_partitions[key] = counts
        counts.append_times = append_times
        return counts

    def forget_share_partition(self, key: SharePartitionKey) -> None:
        """Drops the counts of a share-partition whose state was replaced."""
        self.share_partitions.pop(key, None)
        self._forgotten_moment = self.next_moment()
        self.on_forgotten()

    def note_stored(self, key: SharePartitionKey, progress: Progress, log_end_offset: int, asked_moment: int) -> bool:
        """A share-partition is stored with this progress; False if the known progress is at least as new.

        `asked_moment` is of `next_moment`, before the share coordinator was asked. There is no room for more than
        SHARE_PARTITIONS_KEPT_LIMIT.
        """
        counts = self.share_partitions.get(key)
        if asked_moment < self._forgotten_moment:
            return False
        if counts is None:
            if len(self.share_partitions) >= SHARE_PARTITIONS_KEPT_LIMIT:
                return False
            counts = self.of_share_partition(key, log_end_offset)
        elif asked_moment < counts.progress_moment:
            return False
        counts.progress, counts.progress_moment = progress, asked_moment
        return True

    def dead_letters(self, key: SharePartitionKey, *, stored: int = 0, given_up: int = 0) -> None:
        """Dead letters of a share-partition are stored, or its records are given up without one."""
        counts = self.share_partitions.get(key)
        if counts is not None:
            counts.dead_letters += stored
            counts.dead_letters_given_up += given_up

    def of_group_topic(self, group_id: str, topic_id: bytes) -> GroupTopicCounts:
        pair = (group_id, topic_id)
        found = self.group_topics.get(pair)
        if found is None:
            if len(self.group_topics) >= GROUPS_KEPT_LIMIT:
                del self.group_topics[next(iter(self.group_topics))]
            found = self.group_topics[pair] = GroupTopicCounts()
        return found

    def of_group(self, group_id: str) -> GroupCounts:
        found = self.groups.get(group_id)
        if found is None:
            if len(self.groups) >= GROUPS_KEPT_LIMIT:
                del self.groups[next(iter(self.groups))]
            found = self.groups[group_id] = GroupCounts()
        return found

    def _make_room(self) -> None:
        if len(self.share_partitions) >= SHARE_PARTITIONS_KEPT_LIMIT:
            unused = next((key for key in self.share_partitions if not self.is_kept(key)), None)
            if unused is not None:
                del self.share_partitions[unused]
