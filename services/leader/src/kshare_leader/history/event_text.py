"""The JSON encoding of events in a record's `events`, written field by field, as there may be thousands a second.

Each function returns the text that `kshare_core.delivery_history` reads as the same event. All of it is ASCII, so its
length is its size. `member` and `client` are a member id and a client id as JSON text (`as_json`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache

from kshare_core.delivery_history import EventType
from kshare_core.states import RecordState
from kshare_leader.machine.interval_map import Run

MEMBERS_CACHED = 10_000
STATE_NAMES = {
    RecordState.AVAILABLE: "Available",
    RecordState.ACKNOWLEDGED: "Acknowledged",
    RecordState.ARCHIVING: "Archiving",
    RecordState.ARCHIVED: "Archived",
}
"""Kafka's names of the durable states."""


@lru_cache(maxsize=MEMBERS_CACHED)
def as_json(text: str) -> str:
    """A JSON string, ASCII only."""
    return json.dumps(text)


def acquired(
    time_ms: int,
    first_offset: int,
    last_offset: int,
    delivery_count: int,
    member: str,
    append_time_ms: int | None,
    lock_deadline_ms: int,
    client: str = "",
) -> str:
    appended = "" if append_time_ms is None else f',"append_time_ms":{append_time_ms}'
    named = f',"client_id":{client}' if client else ""
    return (
        f'{{"event":"acquired","time_ms":{time_ms},"first_offset":{first_offset},"last_offset":{last_offset},'
        f'"delivery_count":{delivery_count},"member_id":{member}{named}{appended},"lock_deadline_ms":{lock_deadline_ms}}}'
    )


def of_run(
    event: EventType,
    time_ms: int,
    first_offset: int,
    last_offset: int,
    delivery_count: int,
    *,
    member: str = "",
    reason: str = "",
    lock_deadline_ms: int | None = None,
    dead_letter_topic: str = "",
) -> str:
    """Any event that has a run; empty fields and None are left out."""
    more = f',"member_id":{member}' if member else ""
    if lock_deadline_ms is not None:
        more += f',"lock_deadline_ms":{lock_deadline_ms}'
    if reason:
        more += f',"reason":"{reason}"'
    if dead_letter_topic:
        more += f',"dead_letter_topic":{as_json(dead_letter_topic)}'
    return (
        f'{{"event":"{event}","time_ms":{time_ms},"first_offset":{first_offset},"last_offset":{last_offset},'
        f'"delivery_count":{delivery_count}{more}}}'
    )


def start_offset_moved(time_ms: int, start_offset: int, reason: str) -> str:
    return f'{{"event":"start_offset_moved","time_ms":{time_ms},"start_offset":{start_offset},"reason":"{reason}"}}'


def unloaded(time_ms: int, reason: str) -> str:
    return f'{{"event":"unloaded","time_ms":{time_ms},"reason":"{reason}"}}'


def loaded(time_ms: int, start_offset: int, runs: Iterable[Run], reason: str) -> str:
    """`runs` are the window's, just loaded; `reason` is empty if there is none."""
    listed = ",".join(
        f'[{run.first_offset},{run.last_offset},"{STATE_NAMES[run.state]}",{run.delivery_count}]' for run in runs
    )
    why = f',"reason":{as_json(reason)}' if reason else ""
    return f'{{"event":"loaded","time_ms":{time_ms},"start_offset":{start_offset}{why},"runs":[{listed}]}}'
