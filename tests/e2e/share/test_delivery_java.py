"""Features that only Kafka's KafkaShareConsumer (4.3.1) offers, on kshare and on Apache Kafka 4.3.1.

RENEW, record_limit, acknowledgement types for each offset, the callback of acknowledgements, lag.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from support.clients.delivery import (
    ONE_BY_ONE,
    Reader,
    System,
    new_group,
    new_topic,
    produce,
    running_system,
    values_of,
    wait_for,
)
from support.kafka.java_clients import JavaClients, JavaError, JavaMember, JavaRecord

LOCK_S = 5
"""So long that a machine that stands still for some seconds loses no lock that a test holds."""
SHORT_LOCK = {"record_lock_duration_ms": str(LOCK_S * 1000)}


@pytest.fixture(scope="module")
def java() -> Iterator[JavaClients]:
    with JavaClients() as clients:
        yield clients


@pytest.fixture(scope="module", params=["kshare", "kafka"])
def system(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, java: JavaClients
) -> Iterator[System]:
    with running_system(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture
def bootstrap(system: System) -> str:
    return system.bootstrap


@pytest.fixture
def records_bootstrap(system: System) -> str:
    return system.records_bootstrap


def values(records: list[JavaRecord]) -> list[str]:
    return [(record.value or b"").decode() for record in records]


def counts(records: list[JavaRecord]) -> list[int | None]:
    return [record.delivery_count for record in records]


def accept(member: JavaMember, records: list[JavaRecord]) -> None:
    member.acknowledge(records)
    assert dict.fromkeys(member.commit_sync().values()) == {"ok": None}


def test_renewing_keeps_a_lock_beyond_its_duration(java: JavaClients, bootstrap: str, records_bootstrap: str) -> None:
    with ExitStack() as entered:
        # A Java consumer also fetches without being polled, so the one that loses its lock has to stand still.
        standing_still = entered.enter_context(JavaClients())
        while True:
            topic, group = new_topic(records_bootstrap), new_group(bootstrap, **SHORT_LOCK)
            renewing, leaving, other = (
                entered.enter_context(clients.member(bootstrap, group, [topic], max_poll_records=1))
                for clients in (java, standing_still, java)
            )
            for member in (renewing, leaving):  # a first poll may take longer than the lock
                assert member.poll(100) == []
            produced_at = time.monotonic()
            produce(records_bootstrap, topic, ["one", "another"], settings=ONE_BY_ONE)
            held = renewing.take()
            started_at = time.monotonic()
            renewed, left = values(held), values(leaving.take())
            if time.monotonic() < produced_at + LOCK_S:
                break  # else a lock may have run out meanwhile, and both had the same record
        assert {*renewed, *left} == {"one", "another"}
        found: list[JavaRecord] = []
        entered.enter_context(standing_still.suspended())
        while not found or time.monotonic() < started_at + LOCK_S + 2:
            assert time.monotonic() < started_at + 30, "what was left comes to the other member"
            renewing.acknowledge(held, "RENEW")
            assert renewing.commit_sync() == {f"{topic}-0": "ok"}
            held = renewing.take()  # the client hands out again what it renewed
            assert (values(held), counts(held)) == (renewed, [1])
            if not found and (found := other.poll(300)):
                # The client that renews may have fetched it too, without handing it out: that is one lock more.
                lapsed_locks = int((time.monotonic() - produced_at) / LOCK_S)
                accept(other, found)
        assert values(found) == left
        [delivery_count] = counts(found)
        assert delivery_count is not None
        assert 2 <= delivery_count <= 1 + lapsed_locks, "a count grows with a lock that has run out"
        accept(renewing, held)


def test_renewing_can_be_forbidden(java: JavaClients, bootstrap: str, records_bootstrap: str) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap, renew_acknowledge_enable="false")
    produce(records_bootstrap, topic, ["record"])
    with java.member(bootstrap, group, [topic]) as holder:
        held = holder.take()
        holder.acknowledge(held, "RENEW")
        assert holder.commit_sync() == {f"{topic}-0": "InvalidRecordStateException"}


def test_record_limit_is_exact(java: JavaClients, bootstrap: str, records_bootstrap: str) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap)
    produce(records_bootstrap, topic, [str(index) for index in range(20)])
    settings = {"share.acquire.mode": "record_limit", "max.poll.records": 7}
    with java.member(bootstrap, group, [topic], **settings) as member:
        sizes: list[int] = []
        while sum(sizes) < 20:
            records = member.take()
            sizes.append(len(records))
            accept(member, records)
    assert sizes == [7, 7, 6]


def test_batch_optimized_takes_whole_batches(java: JavaClients, bootstrap: str, records_bootstrap: str) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap)
    produce(records_bootstrap, topic, [str(index) for index in range(20)])
    with java.member(bootstrap, group, [topic], max_poll_records=7) as member:
        records = member.take()
        assert len(records) == 20
        accept(member, records)


def test_types_are_mixed_in_one_batch(java: JavaClients, bootstrap: str, records_bootstrap: str) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap)
    produce(records_bootstrap, topic, [str(index) for index in range(12)])
    types = ["ACCEPT", "RELEASE", "REJECT", "RENEW"]
    with java.member(bootstrap, group, [topic]) as member:
        records = member.take()
        assert len(records) == 12
        for index, kind in enumerate(types):
            member.acknowledge(records[index::4], kind)
        assert member.commit_sync() == {f"{topic}-0": "ok"}
        seen: dict[str, int | None] = {}
        while len(seen) < 6:
            polled = member.take()
            seen.update(zip(values(polled), counts(polled), strict=True))
            accept(member, polled)
        assert seen == {**dict.fromkeys(["1", "5", "9"], 2), **dict.fromkeys(["3", "7", "11"], 1)}
        produce(records_bootstrap, topic, ["last"])
        last = member.take()
        assert values(last) == ["last"]
        accept(member, last)


def test_implicit_mode_accepts_at_the_next_poll(java: JavaClients, bootstrap: str, records_bootstrap: str) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap)
    produce(records_bootstrap, topic, ["first"])
    with java.member(bootstrap, group, [topic], share_acknowledgement_mode="implicit") as member:
        assert values(member.take()) == ["first"]
        produce(records_bootstrap, topic, ["second"])
        assert values(member.take()) == ["second"]
        assert member.commit_sync() == {f"{topic}-0": "ok"}
        with pytest.raises(JavaError, match="IllegalStateException"):
            member.acknowledge([JavaRecord(b"", topic=topic, offset=1)])
    told = {}
    with java.member(bootstrap, group, [topic]) as member:
        produce(records_bootstrap, topic, ["third"])
        told = dict(zip(values(records := member.take()), counts(records), strict=True))
        accept(member, records)
    assert told == {"third": 1}


def test_explicit_mode_wants_every_record_acknowledged(
    java: JavaClients, bootstrap: str, records_bootstrap: str
) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap)
    produce(records_bootstrap, topic, ["one", "two"])
    with java.member(bootstrap, group, [topic]) as member:
        records = member.take()
        member.acknowledge(records[:1])
        with pytest.raises(JavaError, match="IllegalStateException"):
            member.poll()
        accept(member, records[1:])


@pytest.mark.parametrize("duration_ms", [5000, 15000])
def test_members_are_told_the_lock_duration(
    java: JavaClients, bootstrap: str, records_bootstrap: str, duration_ms: int
) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap, record_lock_duration_ms=str(duration_ms))
    produce(records_bootstrap, topic, ["record"])
    with java.member(bootstrap, group, [topic]) as member:
        assert member.lock_timeout_ms() == -1
        accept(member, member.take())
        assert member.lock_timeout_ms() == duration_ms


def test_results_are_for_each_partition(java: JavaClients, system: System) -> None:
    bootstrap, records_bootstrap = system.bootstrap, system.records_bootstrap
    topics, group = [new_topic(records_bootstrap), new_topic(records_bootstrap)], new_group(bootstrap)
    with java.member(bootstrap, group, topics) as member:
        records = take_from_both(member, records_bootstrap, topics)
        system.delete_topic(topics[0])
        if system.kind == "kshare":  # Kafka's leader refuses at once, whatever its group coordinator still lists
            wait_for(lambda: f"{topics[0]}-0" not in java.share_group_offsets(bootstrap, group), "its state is deleted")
        member.callbacks()
        member.acknowledge(records)
        gone, here = f"{topics[0]}-0", f"{topics[1]}-0"
        assert member.commit_sync() == {gone: "UnknownTopicIdException", here: "ok"}
        told = {at: (offsets, error) for found, error in member.callbacks() for at, offsets in found.items()}
        offsets = [[record.offset for record in records if record.topic == topic] for topic in topics]
        assert told == {gone: (offsets[0], "UnknownTopicIdException"), here: (offsets[1], None)}


def take_from_both(member: JavaMember, records_bootstrap: str, topics: list[str]) -> list[JavaRecord]:
    """Records of two topics in one poll; those of a poll that brings one topic's are accepted."""
    while True:
        for topic in topics:
            produce(records_bootstrap, topic, ["a", "b"])
        records = member.take()
        if {record.topic for record in records} == set(topics):
            return records
        member.acknowledge(records)
        assert dict.fromkeys(member.commit_sync().values()) == {"ok": None}


def test_the_callback_hears_of_what_was_committed_in_the_background(
    java: JavaClients, bootstrap: str, records_bootstrap: str
) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap, **SHORT_LOCK)
    produce(records_bootstrap, topic, ["in time"])
    with java.member(bootstrap, group, [topic], max_poll_records=1) as member:
        heard: list[tuple[dict[str, list[int]], str | None]] = []

        def listen() -> bool:
            assert member.poll(50) == []
            heard.extend(member.callbacks())
            return bool(heard)

        in_time = member.take()
        member.acknowledge(in_time)
        member.commit_async()
        assert values(in_time) == ["in time"]
        wait_for(listen, "the callback is called")
        assert heard == [({f"{topic}-0": [0]}, None)]
        heard.clear()
        produce(records_bootstrap, topic, ["late"])
        late = member.take()
        assert (values(late), heard) == (["late"], [])
        with Reader(bootstrap, group, topic) as other:
            with java.suspended():  # it also fetches without being polled, and would get the record again itself
                assert values_of(other.take()) == ["late"]
            member.acknowledge(late)
            member.commit_async()
            wait_for(listen, "the callback is called")
            assert heard == [({f"{topic}-0": [1]}, "InvalidRecordStateException")]
            other.settle()
