"""The delivery history: events of the records of share-partitions, written to an internal Kafka topic.

A leader writes its events off the hot path; the pipeline reads them. One Kafka record holds the events of one
share-partition that one leader had pending at one moment. Its key is `share_partition_key`, so the events of a
share-partition are in one partition of the topic, in order. Its value is a JSON object:

    {"version": 1, "leader": 2, "incarnation": 17, "sequence": 40, "group": "workers", "topic": "orders",
     "topic_id": "…", "partition": 0, "state_epoch": 3, "leader_epoch": 5, "events": [{…}, …]}

`incarnation` is the leader's node epoch at the start of its process: a later process has a larger one.

`sequence` numbers the events of this share-partition in this incarnation of this leader, from 0. It is the number of
the record's first event; the following events have the next numbers. The events of a record may come twice (a retry).
Missing numbers mean lost events: the leader does not wait for this topic, so a crash or a full buffer loses some.
The event `loaded` then gives the durable state, and so the outcome for every offset meanwhile. Without a loss, `loaded`
comes after `unloaded`; after a change of leaders, the former leader's `unloaded` may be missing.

The events of one leader and share-partition are in the order in which they took effect. Records of a former leader may
come after the first ones of the next: the later leader has the larger `leader_epoch`, and `sequence` orders the rest.

Events that must be durable to take effect are written once they are durable: all but `acquired`, `renewed`, `released`
with reason `not_delivered`, and `archived` of records missing in the log. An acquisition that its leader forgets (a
crash, `unloaded`) has no further event: its lock is gone, and `loaded` gives its state.

An event is an object with `event`, `time_ms` and those of the other fields that it has (`DeliveryEvent`).
`delivery_count` is always that of the event's delivery, so `released` has the count of the delivery that ended.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kshare_core.identifiers import group_partition_of

HISTORY_TOPIC = "__share_delivery_history"
"""The topic's name. The first leader with an event creates it; clients may read it but not write to it."""
HISTORY_VERSION = 1

REASON_SESSION_ENDED = "session_ended"
"""A reason of `released`: the member's share session, its gateway, or its connection is gone. The delivery counts."""
REASON_NOT_DELIVERED = "not_delivered"
"""A reason of `released`: the answer with the records did not reach the member. The delivery does not count: the next
one has the same number."""
REASON_REJECTED = "rejected"
"""A reason of `archived` and `dead_lettered`: the member rejected it; `rejected` came before."""
REASON_DELIVERY_COUNT_LIMIT = "delivery_count_limit"
"""A reason of `archived` and `dead_lettered`: share.delivery.count.limit is reached, after `released` or `expired`."""
REASON_GAP = "gap"
"""A reason of `archived`: the member acknowledged the offset as a gap."""
REASON_MISSING_IN_LOG = "missing_in_log"
"""A reason of `archived`: the log has no record there that the group may see (a control record, compaction, an abort).
"""
REASON_BELOW_LOG_START = "below_log_start"
"""A reason of `archived` and `start_offset_moved`: retention or DeleteRecords moved the log's start."""
REASON_LOG_TRUNCATED = "log_truncated:"
"""A reason of `loaded`, followed by a leader epoch: the leader with that epoch truncated the durable state, because its
log lacks records of the state (its disk was lost, or is older). Every later `loaded` of the state epoch repeats it.
If the number is larger than before, earlier events of these offsets were about other records."""
REASON_DELIVERIES_ENDED = "deliveries_ended"
"""A reason of `start_offset_moved`: all offsets below are acknowledged or archived."""


class EventType(StrEnum):
    """The kinds of events. Offsets are runs, both ends included."""

    LOADED = "loaded"
    """The leader read the durable state: `start_offset`, and `runs` above it. Offsets below `start_offset` are done.

    If there was no state, `reason` is the group's share.auto.offset.reset that gave the start offset, now durable. If
    the state was truncated, it is REASON_LOG_TRUNCATED with the leader epoch that did it."""
    UNLOADED = "unloaded"
    """The leader forgets the share-partition, for the Kafka error in `reason`; all acquisition locks are gone."""
    ACQUIRED = "acquired"
    """Acquired by `member_id` until `lock_deadline_ms`; `delivery_count` includes this delivery.

    Only these events have the member's `client_id`, if it has one; a long one is cut."""
    RENEWED = "renewed"
    """The lock of `member_id` now ends at `lock_deadline_ms` (KIP-1222)."""
    ACCEPTED = "accepted"
    """The acknowledgement by `member_id` is durable."""
    RELEASED = "released"
    """Released by its member (no `reason`), its session's end, or undone (`reason`); available again."""
    REJECTED = "rejected"
    """Rejected by its member. `archived` follows at once, or, with a dead-letter topic, after `dead_lettered`."""
    EXPIRED = "expired"
    """The acquisition lock expired; available again, or archived at its delivery limit."""
    ARCHIVED = "archived"
    """Will not be delivered again; `reason` says why."""
    DEAD_LETTERED = "dead_lettered"
    """Its dead letter is stored in `dead_letter_topic`; `reason` says why. May come again after a crash."""
    START_OFFSET_MOVED = "start_offset_moved"
    """The start offset moved to `start_offset`, for `reason`. Offsets below it are done."""


@dataclass(frozen=True, slots=True)
class DurableRun:
    """A run of a `loaded` event: `state` is Kafka's name (Available, Acknowledged, Archiving, Archived)."""

    first_offset: int
    last_offset: int
    state: str
    delivery_count: int


@dataclass(frozen=True, slots=True)
class DeliveryEvent:
    """One event; absent fields are None and not written.

    `append_time_ms` of an acquired run is the time of its first record from its batch's header (with
    message.timestamp.type=CreateTime, the producer's clock). Times are wall-clock times of the leader.
    """

    event: EventType
    time_ms: int
    first_offset: int | None = None
    last_offset: int | None = None
    delivery_count: int | None = None
    member_id: str | None = None
    append_time_ms: int | None = None
    lock_deadline_ms: int | None = None
    start_offset: int | None = None
    reason: str | None = None
    dead_letter_topic: str | None = None
    runs: tuple[DurableRun, ...] | None = None
    client_id: str | None = None


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    """The value of one record of the history topic."""

    leader: int
    incarnation: int
    sequence: int
    group: str
    topic: str
    topic_id: str
    partition: int
    state_epoch: int
    leader_epoch: int
    events: tuple[DeliveryEvent, ...]


EVENT_FIELDS = tuple(DeliveryEvent.__slots__)
RECORD_FIELDS = tuple(HistoryRecord.__slots__)


def share_partition_key(group: str, topic: str, partition: int) -> bytes:
    """The key of the record; its partition depends on it. A topic's name has no slash, so the key is unambiguous."""
    return f"{topic}/{partition}/{group}".encode()


def history_partition_of(group: str, topic: str, partition: int, partition_count: int) -> int:
    """The partition of the history topic for the events of a share-partition."""
    return group_partition_of(share_partition_key(group, topic, partition).decode(), partition_count)


def encode_history_record(record: HistoryRecord) -> bytes:
    """The record's value, UTF-8 JSON."""
    value: dict[str, Any] = {"version": HISTORY_VERSION}
    for name in RECORD_FIELDS[:-1]:
        value[name] = getattr(record, name)
    value["events"] = [_event_object(event) for event in record.events]
    return json.dumps(value, separators=(",", ":")).encode()


def _event_object(event: DeliveryEvent) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in EVENT_FIELDS:
        value = getattr(event, name)
        if value is not None:
            found[name] = value
    if event.runs is not None:
        found["runs"] = [[run.first_offset, run.last_offset, run.state, run.delivery_count] for run in event.runs]
    return found


def decode_history_record(value: bytes) -> HistoryRecord:
    """The inverse of `encode_history_record`; ValueError for anything else, or for another version."""
    try:
        found = json.loads(value)
        if found["version"] != HISTORY_VERSION:
            raise ValueError(f"history record of version {found['version']!r}; this code reads {HISTORY_VERSION}")
        events = tuple(_event(event) for event in found["events"])
        return HistoryRecord(**{name: found[name] for name in RECORD_FIELDS[:-1]}, events=events)
    except (KeyError, TypeError) as problem:
        raise ValueError(f"not a history record: {problem!r} in {value[:200]!r}") from problem


def _event(found: dict[str, Any]) -> DeliveryEvent:
    fields = {name: found[name] for name in EVENT_FIELDS if name in found}
    fields["event"] = EventType(fields["event"])
    if "runs" in fields:
        fields["runs"] = tuple(DurableRun(*run) for run in fields["runs"])
    return DeliveryEvent(**fields)
