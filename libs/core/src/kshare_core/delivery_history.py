"""The delivery history: what happened to the records of share-partitions, as records of an internal Kafka topic.

A leader writes what it did, off the hot path; the pipeline reads it. One Kafka record holds the events of one
share-partition that one leader had to tell at one moment. Its key is `share_partition_key`, so events of one
share-partition lie in one partition of the topic, in order. Its value is a JSON object:

    {"version": 1, "leader": 2, "incarnation": 17, "sequence": 40, "group": "workers", "topic": "orders",
     "topic_id": "…", "partition": 0, "state_epoch": 3, "leader_epoch": 5, "events": [{…}, …]}

`incarnation` is the leader's node epoch when its process began: a later process has a larger one.
`sequence` counts the events, from 0, that this incarnation of this leader had of this share-partition: the first event
of the record has it, the following ones the numbers after it. The events of a record may come twice (a retry); where
numbers are missing, events were lost: nobody waits for this topic, so a crash or a full buffer loses some.
The event `loaded` then says what the durable state was, and so what became of every offset meanwhile. Without a loss,
`loaded` comes after `unloaded`; a share-partition that another leader has now may have no `unloaded` of the former one.

The events of one leader and share-partition have the order in which they took effect. Records of a former leader may
come after the first ones of the next: `leader_epoch` is larger for the later, and `sequence` orders the rest.
What must be durable to take effect (all but `acquired`, `renewed`, `released` with reason `not_delivered`, and
`archived` of what the log does not have) is told when it is durable. What becomes of an acquisition that its leader
forgets (a crash, `unloaded`) is not told: it is not held any more, and `loaded` says its state.

An event is an object with `event`, `time_ms` and those of the other fields that it has (`DeliveryEvent`).
`delivery_count` is always that of the delivery in question, so `released` has the count of the delivery that ended.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kshare_core.identifiers import group_partition_of

HISTORY_TOPIC = "__share_delivery_history"
"""Its name. Leaders make it when the first of them has something to tell; clients may read it and not write to it."""
HISTORY_VERSION = 1

REASON_SESSION_ENDED = "session_ended"
"""Of `released`: the member's share session, its gateway, or its connection is gone. The delivery counts."""
REASON_NOT_DELIVERED = "not_delivered"
"""Of `released`: the answer with the records did not reach the member. The delivery does not count: the next one has
the same number."""
REASON_REJECTED = "rejected"
"""Of `archived` and `dead_lettered`: the member rejected it; `rejected` was told before."""
REASON_DELIVERY_COUNT_LIMIT = "delivery_count_limit"
"""Of `archived` and `dead_lettered`: share.delivery.count.limit is reached; `released` or `expired` came before."""
REASON_GAP = "gap"
"""Of `archived`: its member says that it saw no record there."""
REASON_MISSING_IN_LOG = "missing_in_log"
"""Of `archived`: the log has no record there that the group may see (a control record, compaction, an abort)."""
REASON_BELOW_LOG_START = "below_log_start"
"""Of `archived` and `start_offset_moved`: retention or DeleteRecords moved the log's start."""
REASON_LOG_TRUNCATED = "log_truncated:"
"""Of `loaded`, followed by a leader epoch: the leader with that epoch cut the durable state, because the log does not
have the records that the state knew (its disk was lost, or is older). It is told by every later `loaded` of the state
epoch. Where the number is larger than before, what was known of the offsets was about other records."""
REASON_DELIVERIES_ENDED = "deliveries_ended"
"""Of `start_offset_moved`: all below is acknowledged or archived."""


class EventType(StrEnum):
    """What can happen. Offsets are runs, both ends included."""

    LOADED = "loaded"
    """The leader read the durable state: `start_offset`, and `runs` above it. Offsets below it are done.

    Where there was none, `reason` is the group's share.auto.offset.reset that gave the start offset, now durable. Where
    the state was cut, it is REASON_LOG_TRUNCATED with the leader epoch that did it."""
    UNLOADED = "unloaded"
    """The leader forgets it, for the Kafka error named by `reason`; who held records does not hold them any more."""
    ACQUIRED = "acquired"
    """Given to `member_id` with `delivery_count` (this one included) until `lock_deadline_ms`."""
    RENEWED = "renewed"
    """`member_id` holds it until `lock_deadline_ms` now (KIP-1222)."""
    ACCEPTED = "accepted"
    """Its acknowledgement by `member_id` is durable."""
    RELEASED = "released"
    """By its member (no `reason`), its session's end, or undone (`reason`), and available again."""
    REJECTED = "rejected"
    """By its member. `archived` follows at once, or, with a dead-letter topic, after `dead_lettered`."""
    EXPIRED = "expired"
    """The acquisition lock ran out; available again, or archived at its delivery limit."""
    ARCHIVED = "archived"
    """Will not be delivered again; `reason` says why."""
    DEAD_LETTERED = "dead_lettered"
    """A dead letter of it is stored in `dead_letter_topic`; `reason` says why. May come again after a crash."""
    START_OFFSET_MOVED = "start_offset_moved"
    """To `start_offset`; `reason` says by what. What is below is done."""


@dataclass(frozen=True, slots=True)
class DurableRun:
    """A run of a `loaded` event: `state` is Kafka's name (Available, Acknowledged, Archiving, Archived)."""

    first_offset: int
    last_offset: int
    state: str
    delivery_count: int


@dataclass(frozen=True, slots=True)
class DeliveryEvent:
    """One event; fields that it does not have are None and not written.

    `append_time_ms` of an acquired run: the time of its first record, as its batch's header says (with
    message.timestamp.type=CreateTime, the producer's clock). Times are wall times of the leader.
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
    """The key of the record, and what decides its partition. A topic's name has no slash, so it is unambiguous."""
    return f"{topic}/{partition}/{group}".encode()


def history_partition_of(group: str, topic: str, partition: int, partition_count: int) -> int:
    """The partition of the topic that has the events of a share-partition."""
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
    """The inverse; ValueError for anything that is no history record of this version."""
    try:
        found = json.loads(value)
        if found["version"] != HISTORY_VERSION:
            raise ValueError(f"history record of version {found['version']!r}; this code reads {HISTORY_VERSION}")
        events = tuple(_event(event) for event in found["events"])
        return HistoryRecord(**{name: found[name] for name in RECORD_FIELDS[:-1]}, events=events)
    except (KeyError, TypeError) as problem:
        raise ValueError(f"no history record: {problem!r} in {value[:200]!r}") from problem


def _event(found: dict[str, Any]) -> DeliveryEvent:
    fields = {name: found[name] for name in EVENT_FIELDS if name in found}
    fields["event"] = EventType(fields["event"])
    if "runs" in fields:
        fields["runs"] = tuple(DurableRun(*run) for run in fields["runs"])
    return DeliveryEvent(**fields)
