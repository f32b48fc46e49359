"""Deliveries to members of share groups, with confluent-kafka's ShareConsumer, on kshare and on Apache Kafka 4.3.1.

The steps and what is asserted are the same for both, so what kshare does is what a user of Kafka expects. That a record
does not come again is shown by a later record that does come: records that may be delivered again go before new ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from threading import Barrier, Thread
from typing import Any

import pytest
from confluent_kafka import KafkaError

from support.clients.delivery import (
    ACCEPT,
    ONE_BY_ONE,
    REJECT,
    RELEASE,
    Reader,
    System,
    counts_of,
    new_group,
    new_topic,
    produce,
    running_system,
    set_group,
    values_of,
)
from support.clients.holding_member import HoldingMember

LOCK_S = 1.0
"""The shortest lock that SETTINGS allow."""
SHORT_LOCK = {"record_lock_duration_ms": "1000"}
LONG_LOCK = {"record_lock_duration_ms": "30000"}
"""For records that a test holds; those that it lets go were acquired before with the short one."""


@pytest.fixture(scope="module", params=["kshare", "kafka"])
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with running_system(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture
def bootstrap(system: System) -> str:
    return system.bootstrap


@pytest.fixture
def records_bootstrap(system: System) -> str:
    return system.records_bootstrap


def numbered(count: int) -> list[str]:
    return [f"record-{index:04d}" for index in range(count)]


# Locks


def test_a_lock_that_runs_out_delivers_again_with_a_higher_count(bootstrap: str, records_bootstrap: str) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap, **SHORT_LOCK)
    values = numbered(6)
    produce(records_bootstrap, topic, values)
    with Reader(bootstrap, group, topic) as slow, Reader(bootstrap, group, topic) as other:
        asked_at = time.monotonic()
        assert (values_of(slow.take()), counts_of(slow.held)) == (values, [1] * 6)
        set_group(bootstrap, group, **LONG_LOCK)
        assert (values_of(other.take()), counts_of(other.held)) == (values, [2] * 6)
        assert LOCK_S <= time.monotonic() - asked_at < LOCK_S + 10
        for message in slow.held:
            slow.consumer.acknowledge(message, ACCEPT)
        assert slow.commit() == {0: KafkaError.INVALID_RECORD_STATE}
        other.settle()
        produce(records_bootstrap, topic, ["last"])
        assert values_of(other.take()) == ["last"]
        other.settle()


def test_a_changed_lock_duration_holds_for_what_is_acquired_afterwards(bootstrap: str, records_bootstrap: str) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap, **LONG_LOCK)
    produce(records_bootstrap, topic, ["long"])
    readers = [Reader(bootstrap, group, topic) for _ in range(3)]
    try:
        assert values_of(readers[0].take()) == ["long"]
        set_group(bootstrap, group, **SHORT_LOCK)
        produce(records_bootstrap, topic, ["short"])
        assert values_of(readers[1].take()) == ["short"]
        set_group(bootstrap, group, **LONG_LOCK)
        assert (values_of(readers[2].take(LOCK_S + 10)), counts_of(readers[2].held)) == (["short"], [2])
        readers[2].settle()
        # The first record's lock is as long as it was when it was acquired.
        readers[0].settle()
    finally:
        for reader in readers:
            reader.close()


# What acknowledgements do


def test_released_records_come_again_and_rejected_ones_do_not(bootstrap: str, records_bootstrap: str) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap)
    produce(records_bootstrap, topic, numbered(9))
    with Reader(bootstrap, group, topic) as reader:
        types = [ACCEPT, RELEASE, REJECT]
        for index, message in enumerate(reader.take()):
            reader.consumer.acknowledge(message, types[index % 3])
        assert reader.commit() == {}
        found: list[Any] = []
        while len(found) < 3:
            found.extend(reader.take())
            reader.settle()
        assert [message.offset() for message in found] == [1, 4, 7]
        assert counts_of(found) == [2] * 3
        produce(records_bootstrap, topic, ["last"])
        assert values_of(reader.take()) == ["last"]
        reader.settle()


@pytest.mark.parametrize("limit", [2, 3])
def test_a_record_is_archived_at_its_delivery_limit(bootstrap: str, records_bootstrap: str, limit: int) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap, delivery_count_limit=str(limit))
    produce(records_bootstrap, topic, ["poison"])
    with Reader(bootstrap, group, topic) as reader:
        for count in range(1, limit + 1):
            assert (values_of(reader.take()), counts_of(reader.held)) == (["poison"], [count])
            reader.settle(RELEASE)
        produce(records_bootstrap, topic, ["last"])
        assert (values_of(reader.take()), counts_of(reader.held)) == (["last"], [1])
        reader.settle()


def test_locks_that_run_out_count_against_the_delivery_limit(bootstrap: str, records_bootstrap: str) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap, delivery_count_limit="2", **SHORT_LOCK)
    produce(records_bootstrap, topic, ["poison"])
    readers = [Reader(bootstrap, group, topic) for _ in range(4)]
    try:
        assert counts_of(readers[0].take()) == [1]
        assert counts_of(readers[1].take()) == [2]
        produce(records_bootstrap, topic, ["marker"])
        assert (values_of(readers[2].take()), counts_of(readers[2].held)) == (["marker"], [1])
        set_group(bootstrap, group, **LONG_LOCK)
        # The marker's lock runs out last, and what may be delivered again comes in the order of the log.
        assert (values_of(readers[3].take()), counts_of(readers[3].held)) == (["marker"], [2])
        readers[3].settle()
    finally:
        for reader in readers:
            reader.close()


def test_a_failing_batch_is_delivered_in_ever_smaller_groups(bootstrap: str, records_bootstrap: str) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap, delivery_count_limit="5")
    produce(records_bootstrap, topic, numbered(16))
    groups: list[tuple[int, int, int]] = []
    with Reader(bootstrap, group, topic) as reader:
        while sum(size for _, size, count in groups if count == 5) < 16:
            messages = reader.take()
            counts = counts_of(messages)
            assert len(dict.fromkeys(counts)) == 1, counts
            groups.append((messages[0].offset(), len(messages), counts[0]))
            reader.settle(RELEASE)
        produce(records_bootstrap, topic, ["last"])
        assert values_of(reader.take()) == ["last"]
        reader.settle()
    whole = [(0, 16, 1), (0, 16, 2), (0, 16, 3)]
    first_half = [(0, 8, 4), *((offset, 1, 5) for offset in range(8))]
    second_half = [(8, 8, 4), *((offset, 1, 5) for offset in range(8, 16))]
    assert groups == whole + first_half + second_half


def test_records_in_flight_are_limited(bootstrap: str, records_bootstrap: str) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap, partition_max_record_locks="100")
    produce(records_bootstrap, topic, numbered(300), settings=ONE_BY_ONE)
    with Reader(bootstrap, group, topic) as first, Reader(bootstrap, group, topic) as second:
        assert len(first.take()) == 100
        assert second.poll(1.0) == []
        first.settle()
        assert [message.offset() for message in second.take()] == list(range(100, 200))
        second.settle()


# Members


def test_a_crashed_member_gives_its_records_to_others_at_once(bootstrap: str, records_bootstrap: str) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap, record_lock_duration_ms="30000")
    produce(records_bootstrap, topic, numbered(10))
    with HoldingMember(bootstrap, group, topic) as member, Reader(bootstrap, group, topic) as other:
        assert member.held() == 10
        assert other.poll(0.5) == []
        killed_at = time.monotonic()
        member.kill()
        assert (values_of(other.take(10)), counts_of(other.held)) == (numbered(10), [2] * 10)
        assert time.monotonic() - killed_at < 10, "the lock is 30 s"
        other.settle()


def test_each_share_group_gets_everything(bootstrap: str, records_bootstrap: str) -> None:
    topic = new_topic(records_bootstrap, 2)
    groups = [new_group(bootstrap) for _ in range(3)]
    for partition in range(2):
        produce(records_bootstrap, topic, [f"{partition}-{value}" for value in numbered(20)], partition)
    expected = sorted(f"{partition}-{value}" for partition in range(2) for value in numbered(20))
    for group in groups:
        with Reader(bootstrap, group, topic) as reader:
            assert sorted(values_of(reader.accept(40))) == expected


def test_members_share_one_partition_and_each_gets_work(bootstrap: str, records_bootstrap: str) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap)
    members, total = 4, 400
    produce(records_bootstrap, topic, numbered(total), settings=ONE_BY_ONE)
    everybody_has_some = Barrier(members)
    found: list[list[str]] = [[] for _ in range(members)]
    failures: list[BaseException] = []

    def work(index: int) -> None:
        try:
            with Reader(bootstrap, group, topic, max_poll_records=20) as reader:
                reader.take()
                everybody_has_some.wait(30)
                while sum(map(len, found)) < total:
                    found[index].extend(values_of(reader.held))
                    reader.settle()
                    reader.poll()
        except BaseException as failure:
            everybody_has_some.abort()
            failures.append(failure)

    threads = [Thread(target=work, args=(index,)) for index in range(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures, failures
    assert sorted(value for values in found for value in values) == numbered(total)
    assert min(map(len, found)) >= 20


def test_one_member_is_served_from_all_partitions_in_turn(bootstrap: str, records_bootstrap: str) -> None:
    topic, group = new_topic(records_bootstrap, 3), new_group(bootstrap)
    for partition in range(3):
        produce(records_bootstrap, topic, numbered(100), partition, settings=ONE_BY_ONE)
    with Reader(bootstrap, group, topic, max_poll_records=10) as reader:
        polled: list[int] = []
        while len(polled) < 9:
            polled.append(reader.take()[0].partition())
            reader.settle()
    assert sorted(dict.fromkeys(polled)) == [0, 1, 2], f"the first nine polls were served from {polled}"


# Topics that come and go


def test_a_topic_that_is_created_after_its_members_came(bootstrap: str, records_bootstrap: str) -> None:
    here, group = new_topic(records_bootstrap), new_group(bootstrap)
    later = f"{here}-later"
    with Reader(bootstrap, group, [here, later]) as reader:
        produce(records_bootstrap, here, ["here"])
        assert values_of(reader.accept(1)) == ["here"]
        new_topic(records_bootstrap, 2, name=later)
        for partition in range(2):
            produce(records_bootstrap, later, numbered(5), partition)
        assert sorted(values_of(reader.accept(10))) == sorted(numbered(5) * 2)


@pytest.mark.parametrize("system", ["kshare"], indirect=True)  # Kafka needs 30 s to initialise the new topic
def test_a_deleted_topic_does_not_disturb_the_others(system: System) -> None:
    bootstrap, records_bootstrap = system.bootstrap, system.records_bootstrap
    kept, gone, group = new_topic(records_bootstrap), new_topic(records_bootstrap), new_group(bootstrap)
    produce(records_bootstrap, gone, numbered(5))
    with Reader(bootstrap, group, [kept, gone]) as reader:
        assert values_of(reader.accept(5)) == numbered(5)
        system.delete_topic(gone)
        produce(records_bootstrap, kept, ["kept"])
        assert values_of(reader.accept(1)) == ["kept"]
        # A topic of the same name is another topic, with records of its own.
        new_topic(records_bootstrap, name=gone)
        produce(records_bootstrap, gone, ["new life"])
        assert values_of(reader.accept(1)) == ["new life"]


# Where a group starts


def test_a_group_starts_where_its_config_says(bootstrap: str, records_bootstrap: str) -> None:
    topic = new_topic(records_bootstrap)
    now_ms = int(time.time() * 1000)
    for hours in (5, 3, 1):
        produce(records_bootstrap, topic, [f"{hours} hours old"], timestamp_ms=now_ms - hours * 3_600_000)
    starts = {
        "earliest": ["5 hours old", "3 hours old", "1 hours old"],
        "latest": [],
        "by_duration:PT4H": ["3 hours old", "1 hours old"],
        "by_duration:PT2H": ["1 hours old"],
        "by_duration:PT30M": [],
    }
    readers = {start: Reader(bootstrap, new_group(bootstrap, auto_offset_reset=start), topic) for start in starts}
    try:
        for start in ("earliest", "by_duration:PT4H", "by_duration:PT2H"):
            assert values_of(readers[start].accept(len(starts[start]))) == starts[start]
        system_start = ("latest", "by_duration:PT30M")
        found: dict[str, list[str]] = {start: [] for start in system_start}
        number = 0
        # Where a group starts is found at its first fetch; nobody can tell from outside when that was.
        while not all(found.values()):
            number += 1
            assert number < 60
            produce(records_bootstrap, topic, [f"new {number}"])
            for start in system_start:
                if messages := readers[start].poll(0.3):
                    found[start].extend(values_of(messages))
                    readers[start].settle()
        assert all(value.startswith("new") for values in found.values() for value in values)
    finally:
        for reader in readers.values():
            reader.close()
