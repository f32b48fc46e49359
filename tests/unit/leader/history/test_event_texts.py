"""Events are written field by field; the contract reads them back as the same events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kshare_core.delivery_history import (
    DeliveryEvent,
    DurableRun,
    EventType,
    HistoryRecord,
    decode_history_record,
    encode_history_record,
    history_partition_of,
    share_partition_key,
)
from kshare_core.identifiers import SharePartitionKey, topic_id_text
from kshare_core.states import RecordState
from kshare_leader.history import event_text
from kshare_leader.history.buffer import HistoryBuffer
from kshare_leader.history.delivery_history import DeliveryHistory
from kshare_leader.machine.interval_map import Run
from kshare_leader.machine.share_partition import SharePartition
from kshare_leader.metrics import HistoryCounts
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2

OFFSETS = st.integers(0, 2**62)
TEXTS = st.text(min_size=1, max_size=20)


def read_back(text: str) -> DeliveryEvent:
    assert text.isascii(), "its length is its size"
    record = f'{{"version":1,"leader":1,"incarnation":2,"sequence":3,"group":"g","topic":"t","topic_id":"i",\
"partition":0,"state_epoch":1,"leader_epoch":1,"events":[{text}]}}'
    (event,) = decode_history_record(record.encode()).events
    return event


@given(OFFSETS, OFFSETS, OFFSETS, st.integers(1, 10), TEXTS, st.none() | OFFSETS, OFFSETS, st.none() | TEXTS)
def test_acquired(
    time_ms: int,
    first: int,
    last: int,
    count: int,
    member: str,
    appended: int | None,
    deadline: int,
    client: str | None,
) -> None:
    names = event_text.as_json(member), event_text.as_json(client) if client else ""
    text = event_text.acquired(time_ms, first, last, count, names[0], appended, deadline, names[1])
    assert read_back(text) == DeliveryEvent(
        EventType.ACQUIRED,
        time_ms,
        first,
        last,
        count,
        member_id=member,
        append_time_ms=appended,
        lock_deadline_ms=deadline,
        client_id=client,
    )


@given(
    st.sampled_from(EventType),
    OFFSETS,
    OFFSETS,
    OFFSETS,
    st.integers(0, 10),
    st.just("") | TEXTS,
    st.sampled_from(["", "rejected"]),
    st.none() | OFFSETS,
    st.just("") | TEXTS,
)
def test_any_event_of_a_run(
    kind: EventType,
    time_ms: int,
    first: int,
    last: int,
    count: int,
    member: str,
    reason: str,
    deadline: int | None,
    topic: str,
) -> None:
    text = event_text.of_run(
        kind,
        time_ms,
        first,
        last,
        count,
        member=event_text.as_json(member) if member else "",
        reason=reason,
        lock_deadline_ms=deadline,
        dead_letter_topic=topic,
    )
    assert read_back(text) == DeliveryEvent(
        kind,
        time_ms,
        first,
        last,
        count,
        member_id=member or None,
        lock_deadline_ms=deadline,
        reason=reason or None,
        dead_letter_topic=topic or None,
    )


def test_those_without_a_run() -> None:
    runs = [
        Run(5, 5, RecordState.ARCHIVED, 0),
        Run(6, 9, RecordState.AVAILABLE, 2),
        Run(10, 10, RecordState.ACKNOWLEDGED, 1),
        Run(11, 12, RecordState.ARCHIVING, 5),
    ]
    assert read_back(event_text.loaded(7, 5, runs, "")) == DeliveryEvent(
        EventType.LOADED,
        7,
        start_offset=5,
        runs=(
            DurableRun(5, 5, "Archived", 0),
            DurableRun(6, 9, "Available", 2),
            DurableRun(10, 10, "Acknowledged", 1),
            DurableRun(11, 12, "Archiving", 5),
        ),
    )
    by_duration = read_back(event_text.loaded(7, 5, [], "by_duration:PT1H"))
    assert by_duration == DeliveryEvent(EventType.LOADED, 7, start_offset=5, runs=(), reason="by_duration:PT1H")
    assert read_back(event_text.unloaded(8, "UNKNOWN_TOPIC_ID")) == DeliveryEvent(
        EventType.UNLOADED, 8, reason="UNKNOWN_TOPIC_ID"
    )
    assert read_back(event_text.start_offset_moved(9, 4, "deliveries_ended")) == DeliveryEvent(
        EventType.START_OFFSET_MOVED, 9, start_offset=4, reason="deliveries_ended"
    )


@given(TEXTS, st.integers(0, 1_000), st.integers(0, 100), st.integers(0, 100))
def test_a_whole_record_is_what_the_contract_would_write(
    group: str, partition: int, state_epoch: int, leader_epoch: int
) -> None:
    topic_id = bytes(range(16))
    view = CatalogView(topics_by_id={topic_id: coordinator_pb2.Topic(topic_id=topic_id, name="orders")})
    buffer = HistoryBuffer(limit_bytes=10_000, counts=HistoryCounts(), wake=lambda at_once: None)
    history = DeliveryHistory(
        buffer=buffer, view=lambda: view, node_id=3, node_epoch=lambda: 17, wall_now_ms=lambda: 1_000
    )
    one = history.begin(SharePartitionKey(group, topic_id, partition), leader_epoch, lambda: 5)
    one.loaded(SharePartition(start_offset=4), state_epoch)
    (segment,) = buffer.take()
    expected = HistoryRecord(
        leader=3,
        incarnation=17,
        sequence=0,
        group=group,
        topic="orders",
        topic_id=topic_id_text(topic_id),
        partition=partition,
        state_epoch=state_epoch,
        leader_epoch=leader_epoch,
        events=(DeliveryEvent(EventType.LOADED, 1_000, start_offset=4, runs=()),),
    )
    assert decode_history_record(segment.value()) == expected
    assert decode_history_record(encode_history_record(expected)) == expected
    assert segment.key == share_partition_key(group, "orders", partition)
    assert 0 <= history_partition_of(group, "orders", partition, 8) < 8
