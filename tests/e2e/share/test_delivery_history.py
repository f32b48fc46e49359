"""`__share_delivery_history` with real clients: the events of each record, by value and in order."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from kshare_core.delivery_history import (
    HISTORY_TOPIC,
    REASON_NOT_DELIVERED,
    DeliveryEvent,
    EventType,
    HistoryRecord,
)
from support.clients.administration import alter_group, alter_topic, create_topic
from support.clients.delivery import (
    ACCEPT,
    REJECT,
    RELEASE,
    SETTINGS,
    Reader,
    new_group,
    new_topic,
    produce,
    set_group,
    wait_for,
)
from support.clients.delivery_history import (
    HISTORY_ON,
    events_of,
    of_share_partition,
    read_history,
    short,
    wait_for_events,
)
from support.clusters.kshare_cluster import KshareCluster

ON = {**SETTINGS, **HISTORY_ON}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KshareCluster]:
    with KshareCluster(tmp_path_factory.mktemp("kshare"), ON) as running:
        yield running


def shorts(records: list[HistoryRecord]) -> list[tuple[Any, ...]]:
    return [short(event) for event in events_of(records)]


def unloaded_times(times: int) -> Callable[[list[DeliveryEvent]], bool]:
    """Whether the last event of a share-partition that nobody uses any more came so often."""
    return lambda events: sum(event.event is EventType.UNLOADED for event in events) == times


unloaded = unloaded_times(1)


def test_each_outcome_is_told_in_order(cluster: KshareCluster) -> None:
    bootstrap, records_at = cluster.bootstrap, cluster.records_bootstrap
    topic, group = new_topic(records_at), new_group(bootstrap, delivery_count_limit="2")
    timestamp_ms = time.time_ns() // 1_000_000 - 5_000
    produce(records_at, topic, ["a", "b", "c", "d"], timestamp_ms=timestamp_ms)
    with Reader(bootstrap, group, topic, client_id="a worker") as reader:
        for message, kind in zip(reader.take(), (ACCEPT, RELEASE, REJECT, RELEASE), strict=True):
            reader.consumer.acknowledge(message, kind)
        assert reader.commit() == {}
        assert [message.offset() for message in reader.take()] == [1, 3]
        reader.settle(RELEASE)
    records = wait_for_events(records_at, group, topic, unloaded)
    assert shorts(records) == [
        ("loaded", 0, "earliest"),
        ("acquired", 0, 3, 1, None),
        ("accepted", 0, 0, 1, None),
        ("released", 1, 1, 1, None),
        ("rejected", 2, 2, 1, None),
        ("archived", 2, 2, 1, "rejected"),
        ("released", 3, 3, 1, None),
        ("start_offset_moved", 1, "deliveries_ended"),
        ("acquired", 1, 1, 2, None),
        ("acquired", 3, 3, 2, None),
        ("released", 1, 1, 2, None),
        ("archived", 1, 1, 2, "delivery_count_limit"),
        ("released", 3, 3, 2, None),
        ("archived", 3, 3, 2, "delivery_count_limit"),
        ("start_offset_moved", 4, "deliveries_ended"),
        ("unloaded",),
    ]
    sequence = 0
    for record in records:
        assert (record.leader, record.sequence, record.state_epoch) == (1, sequence, records[0].state_epoch)
        sequence += len(record.events)
    acquired = [event for event in events_of(records) if event.event is EventType.ACQUIRED]
    members = {event.member_id for event in events_of(records) if event.member_id}
    assert len(members) == 1
    for event in acquired:
        assert event.append_time_ms == timestamp_ms
        assert event.client_id == "a worker"
        assert event.lock_deadline_ms == event.time_ms + 30_000, "share.record.lock.duration.ms"
    times = [event.time_ms for event in events_of(records)]
    assert times == sorted(times) and abs(times[0] - time.time_ns() // 1_000_000) < 30_000


def test_locks_that_run_out_and_sessions_that_end(cluster: KshareCluster) -> None:
    bootstrap, records_at = cluster.bootstrap, cluster.records_bootstrap
    topic, group = new_topic(records_at), new_group(bootstrap, record_lock_duration_ms="1000")
    produce(records_at, topic, ["a"])
    with Reader(bootstrap, group, topic) as reader:
        reader.take()
        wait_for_events(records_at, group, topic, lambda events: any(one.event is EventType.EXPIRED for one in events))
    set_group(bootstrap, group, record_lock_duration_ms="30000")
    with Reader(bootstrap, group, topic) as reader:
        reader.take()
    records = wait_for_events(
        records_at, group, topic, lambda events: any(event.reason == "session_ended" for event in events)
    )
    told = [one for one in shorts(records) if one[0] in ("acquired", "expired", "released")]
    assert told == [
        ("acquired", 0, 0, 1, None),
        ("expired", 0, 0, 1, None),
        ("acquired", 0, 0, 2, None),
        ("released", 0, 0, 2, "session_ended"),
    ]
    first, expired, second, released = [event for event in events_of(records) if event.member_id]
    assert first.lock_deadline_ms is not None and expired.time_ms >= first.lock_deadline_ms
    assert (first.member_id, second.member_id) == (expired.member_id, released.member_id)


def test_dead_letters_are_told_when_they_are_stored(cluster: KshareCluster) -> None:
    bootstrap, records_at = cluster.bootstrap, cluster.records_bootstrap
    letters = f"dlq.{uuid.uuid4().hex[:8]}"
    create_topic(records_at, letters, 1)
    alter_topic(bootstrap, letters, {"errors.deadletterqueue.group.enable": "true"})
    topic, group = new_topic(records_at), new_group(bootstrap)
    alter_group(bootstrap, group, {"errors.deadletterqueue.topic.name": letters})
    produce(records_at, topic, ["a", "b", "c"])
    with Reader(bootstrap, group, topic) as reader:
        for message, kind in zip(reader.take(), (ACCEPT, REJECT, REJECT), strict=True):
            reader.consumer.acknowledge(message, kind)
        assert reader.commit() == {}
        records = wait_for_events(
            records_at, group, topic, lambda events: any(event.start_offset == 3 for event in events)
        )
    assert shorts(records)[2:] == [
        ("accepted", 0, 0, 1, None),
        ("rejected", 1, 2, 1, None),
        ("start_offset_moved", 1, "deliveries_ended"),
        ("dead_lettered", 1, 2, 1, "rejected"),
        ("archived", 1, 2, 1, "rejected"),
        ("start_offset_moved", 3, "deliveries_ended"),
    ]
    (letter,) = [event for event in events_of(records) if event.event is EventType.DEAD_LETTERED]
    assert letter.dead_letter_topic == letters


def tell_something(cluster: KshareCluster) -> None:
    """The history has records afterwards."""
    bootstrap, records_at = cluster.bootstrap, cluster.records_bootstrap
    topic, group = new_topic(records_at), new_group(bootstrap)
    produce(records_at, topic, ["a"])
    with Reader(bootstrap, group, topic) as reader:
        reader.accept(1)
    wait_for_events(records_at, group, topic, unloaded)


def test_administrators_alter_the_configs_with_which_it_was_made(cluster: KshareCluster) -> None:
    tell_something(cluster)
    admin = AdminClient({"bootstrap.servers": cluster.records_bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, HISTORY_TOPIC)

    def value(name: str) -> str | None:
        described = admin.describe_configs([resource])
        (configs,) = [future.result(20) for future in described.values()]
        found: str | None = configs[name].value
        return found

    assert (value("cleanup.policy"), value("retention.ms")) == ("delete", "604800000")
    change = ConfigEntry("retention.ms", "3600000", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, HISTORY_TOPIC, incremental_configs=[change])
    admin.incremental_alter_configs([changed])[changed].result(20)
    wait_for(lambda: value("retention.ms") == "3600000", "the config")
    assert len(admin.list_topics(timeout=20).topics[HISTORY_TOPIC].partitions) == 2


def test_clients_change_nothing_but_its_configs(cluster: KshareCluster) -> None:
    tell_something(cluster)
    bootstrap = cluster.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    errors: list[str] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(HISTORY_TOPIC, b"{}", on_delivery=lambda error, message: errors.append(str(error)))
    assert producer.flush(20) == 0
    assert len(errors) == 1 and "INVALID_TOPIC" in errors[0].upper().replace(" ", "_"), errors
    attempts: tuple[Callable[[], Any], ...] = (
        lambda: admin.delete_topics([HISTORY_TOPIC])[HISTORY_TOPIC],
        lambda: admin.create_topics([NewTopic(HISTORY_TOPIC, 1, 1)])[HISTORY_TOPIC],
        lambda: admin.create_partitions([NewPartitions(HISTORY_TOPIC, 9)])[HISTORY_TOPIC],
    )
    for attempt in attempts:
        with pytest.raises(KafkaException, match="INVALID_REQUEST"):
            attempt().result(20)


def test_groups_that_read_the_history_are_not_in_the_history(cluster: KshareCluster) -> None:
    bootstrap, records_at = cluster.bootstrap, cluster.records_bootstrap
    topic, group, watchers = new_topic(records_at), new_group(bootstrap), new_group(bootstrap)
    produce(records_at, topic, ["a"])
    with Reader(bootstrap, group, topic) as reader:
        reader.accept(1)
    wait_for_events(records_at, group, topic, unloaded)
    with Reader(bootstrap, watchers, HISTORY_TOPIC) as reader:
        assert reader.accept(1)
    produce(records_at, topic, ["b"])
    with Reader(bootstrap, group, topic) as reader:
        reader.accept(1)
    wait_for_events(records_at, group, topic, unloaded_times(2))
    assert [record for record in read_history(records_at) if record.group == watchers] == []


def test_the_number_of_an_event_goes_on_when_the_share_partition_comes_back(cluster: KshareCluster) -> None:
    bootstrap, records_at = cluster.bootstrap, cluster.records_bootstrap
    topic, group = new_topic(records_at), new_group(bootstrap)
    for number in (1, 2):
        produce(records_at, topic, ["a"])
        with Reader(bootstrap, group, topic) as reader:
            reader.accept(1)
        records = wait_for_events(records_at, group, topic, unloaded_times(number))
    assert [record.sequence for record in records] == [
        sum(len(before.events) for before in records[:index]) for index in range(len(records))
    ]
    loads = [event for event in events_of(records) if event.event is EventType.LOADED]
    assert [(event.start_offset, event.runs, event.reason) for event in loads] == [(0, (), "earliest"), (1, (), None)]


def test_a_leader_that_was_killed_leaves_a_gap_that_loaded_closes(cluster: KshareCluster) -> None:
    bootstrap, records_at = cluster.bootstrap, cluster.records_bootstrap
    topic, group = new_topic(records_at), new_group(bootstrap)
    produce(records_at, topic, ["a", "b", "c"])
    with Reader(bootstrap, group, topic) as reader:
        messages = reader.take()
        for message, kind in zip(messages, (RELEASE, ACCEPT, RELEASE), strict=True):
            reader.consumer.acknowledge(message, kind)
        assert reader.commit() == {}
        wait_for_events(records_at, group, topic, lambda events: any(e.event is EventType.RELEASED for e in events))
        cluster.wait_until_gone(cluster.kill_role("leader"))
    with Reader(bootstrap, group, topic) as reader:
        reader.accept(2)
    records = wait_for_events(records_at, group, topic, lambda events: any(e.start_offset == 3 for e in events))
    first, *_ = records
    later = [record for record in records if record.incarnation != first.incarnation]
    assert all(record.incarnation > first.incarnation for record in later)
    assert later[0].sequence == 0 and later[0].leader_epoch > first.leader_epoch
    loaded = later[0].events[0]
    assert (loaded.event, loaded.start_offset, loaded.reason) == (EventType.LOADED, 0, None)
    assert loaded.runs is not None
    assert [(run.first_offset, run.last_offset, run.state, run.delivery_count) for run in loaded.runs] == [
        (0, 0, "Available", 1),
        (1, 1, "Acknowledged", 1),
        (2, 2, "Available", 1),
    ]
    for offset in (0, 2):
        count, acquisitions = 1, 0
        for event in events_of(later):
            if event.first_offset is None or event.last_offset is None:
                continue
            if not event.first_offset <= offset <= event.last_offset:
                continue
            if event.event is EventType.ACQUIRED:
                count, acquisitions = count + 1, acquisitions + 1
                assert event.delivery_count == count
            elif event.reason == REASON_NOT_DELIVERED:
                count -= 1
        # The first reader may acquire once more, and give back when it closes: it is open until the leader has ended.
        assert acquisitions in (1, 2)
        assert ("accepted", offset, offset, count, None) in shorts(later)


def has_a_gap(records: list[HistoryRecord]) -> bool:
    return records[-1:] != [] and records[-1].sequence > sum(len(record.events) for record in records[:-1])


def test_a_full_buffer_loses_events_and_nothing_else(tmp_path: Path) -> None:
    """There is room for a few events; what comes while they are on their way is dropped."""
    settings = {**ON, "kshare.delivery.history.buffer.bytes": "500"}
    with KshareCluster(tmp_path, settings, single_process=True) as cluster:
        bootstrap, records_at = cluster.bootstrap, cluster.records_bootstrap
        topic, group = new_topic(records_at), new_group(bootstrap)
        with Reader(bootstrap, group, topic) as reader:
            for index in range(20):
                produce(records_at, topic, [str(index)], settings={"linger.ms": 0})
                assert len(reader.accept(1)) == 1
        log = cluster.wait_for_log("delivery events were dropped")
        assert "kshare.delivery.history.buffer.bytes" in log
        produce(records_at, topic, ["last"])
        with Reader(bootstrap, group, topic) as reader:
            reader.accept(1)
            wait_for(lambda: has_a_gap(of_share_partition(read_history(records_at), group, topic)), "missing numbers")
        records = of_share_partition(read_history(records_at), group, topic)
    assert all(len(record.events) <= 4 for record in records)
