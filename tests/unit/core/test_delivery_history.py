"""The delivery history's records: they are decoded as they were encoded; anything else is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_core.delivery_history import (
    EVENT_FIELDS,
    DeliveryEvent,
    DurableRun,
    EventType,
    HistoryRecord,
    decode_history_record,
    encode_history_record,
    share_partition_key,
)

offsets = st.integers(0, 2**62)
runs = st.builds(DurableRun, offsets, offsets, st.sampled_from(["Available", "Archived"]), st.integers(0, 100))
events = st.builds(
    DeliveryEvent,
    event=st.sampled_from(EventType),
    time_ms=offsets,
    first_offset=st.none() | offsets,
    last_offset=st.none() | offsets,
    member_id=st.none() | st.text(),
    reason=st.none() | st.text(),
    runs=st.none() | st.lists(runs, max_size=3).map(tuple),
)
records = st.builds(
    HistoryRecord,
    leader=st.integers(0, 9),
    incarnation=offsets,
    sequence=offsets,
    group=st.text(min_size=1),
    topic=st.text(min_size=1),
    topic_id=st.text(),
    partition=st.integers(0, 9),
    state_epoch=offsets,
    leader_epoch=offsets,
    events=st.lists(events, max_size=4).map(tuple),
)


@given(records)
def test_a_record_comes_back_as_it_was_written(record: HistoryRecord) -> None:
    assert decode_history_record(encode_history_record(record)) == record


def test_fields_that_an_event_has_not_are_not_written() -> None:
    event = DeliveryEvent(EventType.ACCEPTED, 5, first_offset=1, last_offset=2, member_id="m")
    record = HistoryRecord(1, 2, 3, "g", "t", "id", 0, 1, 1, (event,))
    written = json.loads(encode_history_record(record))["events"][0]
    assert written == {"event": "accepted", "time_ms": 5, "first_offset": 1, "last_offset": 2, "member_id": "m"}
    assert set(written) < set(EVENT_FIELDS)


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"version": 2}', b'{"version": 1, "events": [{}]}', b"\xff"])
def test_what_is_no_history_record_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError):
        decode_history_record(value)


def test_the_key_tells_share_partitions_apart() -> None:
    assert share_partition_key("a/0", "t", 0) != share_partition_key("0/a", "t", 0)
