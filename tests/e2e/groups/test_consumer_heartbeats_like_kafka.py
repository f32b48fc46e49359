"""Consumer groups of KIP-848 by hand, on kshare and on Apache Kafka 4.3.1: the same requests, the same answers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from kshare_core.errors import ErrorCode as E
from support.clients.delivery import Reader, System, new_topic, produce, running_system, set_group
from support.groups.consumer_wire import GroupConnection

TIMEOUT_S = 60.0


@pytest.fixture(scope="module", params=["kshare", "kafka"])
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    settings = {"group_consumer_assignment_interval_ms": "0", "group_consumer_max_size": "4"}
    with running_system(request.param, tmp_path_factory.mktemp(request.param), **settings) as running:
        wait_for_coordinator(running.bootstrap)
        yield running


def wait_for_coordinator(bootstrap: str) -> None:
    """Apache Kafka makes the topic of its groups when a client first looks for their coordinator."""
    topic = new_topic(bootstrap)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "first", "log_level": 0})
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            consumer.committed([TopicPartition(topic, 0)], timeout=TIMEOUT_S)
        except KafkaException as failure:
            assert time.monotonic() < deadline, failure
            continue
        consumer.close()
        return


@pytest.fixture
def connection(system: System) -> Iterator[GroupConnection]:
    with GroupConnection(system.bootstrap) as made:
        yield made


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(system: System, connection: GroupConnection) -> str:
    return known_topic(system, connection)


def known_topic(system: System, connection: GroupConnection) -> str:
    """A new topic that the group coordinator has heard of; Apache Kafka's hears of it a little later."""
    name = new_topic(system.bootstrap, 4)
    deadline = time.monotonic() + TIMEOUT_S
    while not assigned(connection.join(f"probe-{uuid.uuid4().hex[:8]}", "probe", [name])):
        assert time.monotonic() < deadline, f"the coordinator does not know {name}"
        time.sleep(0.05)
    return name


def assigned(answer: Any) -> dict[UUID, list[int]] | None:
    assert answer.error_code == 0, answer
    if answer.assignment is None:
        return None
    return {part.topic_id: sorted(part.partitions) for part in answer.assignment.topic_partitions}


def only_topic(answer: Any) -> UUID:
    found = assigned(answer)
    assert found is not None and len(found) == 1
    return next(iter(found))


JOIN = {"owned": {}, "rebalance_timeout_ms": 60_000}


@pytest.mark.parametrize(
    ("member_id", "epoch", "fields", "code"),
    [
        ("", 0, {**JOIN, "names": ["t"]}, E.INVALID_REQUEST),
        ("x", 0, {**JOIN, "names": ["t"], "instance_id": ""}, E.INVALID_REQUEST),
        ("x", 0, {**JOIN, "names": ["t"], "rack_id": ""}, E.INVALID_REQUEST),
        ("x", 0, {"names": ["t"], "owned": {}}, E.INVALID_REQUEST),
        ("x", 0, {"names": ["t"], "rebalance_timeout_ms": 1000}, E.INVALID_REQUEST),
        ("x", 0, {**JOIN, "names": ["t"], "owned": {UUID(int=1): [0]}}, E.INVALID_REQUEST),
        ("x", 0, JOIN, E.INVALID_REQUEST),
        ("x", -2, {}, E.INVALID_REQUEST),
        ("x", -3, {}, E.INVALID_REQUEST),
        ("x", 0, {**JOIN, "names": ["t"], "assignor": "sticky"}, E.UNSUPPORTED_ASSIGNOR),
        ("x", 0, {**JOIN, "regex": "("}, E.INVALID_REGULAR_EXPRESSION),
        ("x", 1, {"regex": "("}, E.UNKNOWN_MEMBER_ID),
        ("a", 2, {"regex": "("}, E.INVALID_REGULAR_EXPRESSION),
        ("x", 1, {}, E.UNKNOWN_MEMBER_ID),
        ("x", -1, {}, E.UNKNOWN_MEMBER_ID),
        ("x", -1, {"instance_id": "none"}, E.UNKNOWN_MEMBER_ID),
        ("x", 1, {"instance_id": "none"}, E.UNKNOWN_MEMBER_ID),
        ("x", 1, {"instance_id": "i"}, E.FENCED_INSTANCE_ID),
        ("x", -1, {"instance_id": "i"}, E.FENCED_INSTANCE_ID),
        ("x", -2, {"instance_id": "i"}, E.FENCED_INSTANCE_ID),
        ("x", 0, {**JOIN, "names": ["t"], "instance_id": "i"}, E.UNRELEASED_INSTANCE_ID),
        ("a", 9, {}, E.FENCED_MEMBER_EPOCH),
        ("a", 1, {}, E.FENCED_MEMBER_EPOCH),
        ("s", 9, {"instance_id": "i"}, E.FENCED_MEMBER_EPOCH),
    ],
)
def test_refused_heartbeats(
    connection: GroupConnection, group: str, topic: str, member_id: str, epoch: int, fields: dict[str, Any], code: E
) -> None:
    connection.join(group, "a", [topic])
    connection.join(group, "s", [topic], instance_id="i")
    answer: Any = connection.heartbeat(group, member_id, epoch, **fields)
    assert (answer.error_code, answer.assignment) == (code, None)
    assert answer.error_message


def test_groups_that_are_not_there_and_groups_that_are_full(
    connection: GroupConnection, group: str, topic: str
) -> None:
    for epoch, fields in ((1, {}), (-1, {}), (-2, {"instance_id": "i"})):
        answer: Any = connection.heartbeat(group, "a", epoch, **fields)  # type: ignore[arg-type]
        assert answer.error_code == E.GROUP_ID_NOT_FOUND
    assert connection.describe(group).error_code == E.GROUP_ID_NOT_FOUND  # type: ignore[comparison-overlap]
    for member_id in "abcd":
        connection.join(group, member_id, [topic])
    assert connection.join(group, "e", [topic]).error_code == E.GROUP_MAX_SIZE_REACHED
    assert connection.join(group, "a", [topic]).error_code == E.NONE


def test_a_rebalance_step_by_step(connection: GroupConnection, group: str, topic: str) -> None:
    first = connection.join(group, "a", [topic])
    topic_id = only_topic(first)
    assert (first.member_epoch, assigned(first)) == (2, {topic_id: [0, 1, 2, 3]})
    second = connection.join(group, "b", [topic])
    assert (second.member_epoch, assigned(second)) == (3, {})
    assert connection.describe(group).group_state == "Reconciling"
    answer = connection.heartbeat(group, "a", 2)
    kept = assigned(answer)
    assert answer.member_epoch == 2 and kept is not None and len(kept[topic_id]) == 2
    assert assigned(connection.heartbeat(group, "b", 3)) is None
    answer = connection.heartbeat(group, "a", 2, owned=kept)
    assert (answer.member_epoch, assigned(answer)) == (3, None)
    # the answer was lost: once more with the epoch before, and all fields
    answer = connection.heartbeat(group, "a", 2, owned=kept, names=[topic], rebalance_timeout_ms=60_000)
    assert (answer.member_epoch, assigned(answer)) == (3, kept)
    given: Any = assigned(connection.heartbeat(group, "b", 3))
    assert sorted([*given[topic_id], *kept[topic_id]]) == [0, 1, 2, 3]
    described = connection.describe(group)
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == ("Stable", 3, 3)
    assert (described.assignor_name, {member.member_epoch for member in described.members}) == ("uniform", {3})
    assert {member.member_type for member in described.members} == {1}
    left = connection.heartbeat(group, "a", -1)
    assert (left.error_code, left.member_id, left.member_epoch) == (0, "a", -1)
    answer = connection.heartbeat(group, "b", 3)
    assert (answer.member_epoch, assigned(answer)) == (4, {topic_id: [0, 1, 2, 3]})
    connection.heartbeat(group, "b", -1)
    described = connection.describe(group)
    assert (described.group_state, described.group_epoch, described.members) == ("Empty", 5, ())


def test_a_static_member_leaves_for_a_while(connection: GroupConnection, group: str, topic: str) -> None:
    first = connection.join(group, "a", [topic], instance_id="i")
    topic_id = only_topic(first)
    left = connection.heartbeat(group, "a", -2, instance_id="i")
    assert (left.error_code, left.member_id, left.member_epoch) == (0, "a", -2)
    other = connection.join(group, "b", [topic])
    assert assigned(other) == {}
    back = connection.join(group, "a2", [topic], instance_id="i")
    kept: Any = assigned(back)
    assert len(kept[topic_id]) == 2 and back.member_id == "a2"
    given: Any = assigned(connection.heartbeat(group, "b", other.member_epoch))
    assert sorted([*given[topic_id], *kept[topic_id]]) == [0, 1, 2, 3]
    gone: Any = connection.heartbeat(group, "a", -2, instance_id="i")
    assert gone.error_code == E.FENCED_INSTANCE_ID
    members = connection.describe(group).members
    assert {(member.member_id, member.instance_id) for member in members} == {("a2", "i"), ("b", None)}


def test_range_over_two_topics(connection: GroupConnection, system: System, group: str, topic: str) -> None:
    other = known_topic(system, connection)
    names = [topic, other]
    connection.join(group, "a", names, assignor="range")
    connection.join(group, "b", names, assignor="range")
    described = connection.describe(group)
    shown = {
        member.member_id: sorted((part.topic_name, sorted(part.partitions)) for part in target.topic_partitions)
        for member in described.members
        for target in [member.target_assignment]
    }
    assert described.assignor_name == "range"
    assert shown == {
        "a": sorted([(topic, [0, 1]), (other, [0, 1])]),
        "b": sorted([(topic, [2, 3]), (other, [2, 3])]),
    }


def test_a_share_group_and_a_consumer_group_cannot_have_one_id(
    connection: GroupConnection, system: System, group: str, topic: str
) -> None:
    set_group(system.bootstrap, group, auto_offset_reset="earliest")
    produce(system.bootstrap, topic, ["one"])
    with Reader(system.bootstrap, group, topic) as reader:
        assert len(reader.accept(1)) == 1
        answer: Any = connection.join(group, "a", [topic])
        assert answer.error_code == E.GROUP_ID_NOT_FOUND
    assert connection.describe(group).error_code == E.GROUP_ID_NOT_FOUND  # type: ignore[comparison-overlap]
