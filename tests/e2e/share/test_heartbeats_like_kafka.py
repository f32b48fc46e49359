"""Sequences of ShareGroupHeartbeat, and what ShareGroupDescribe shows after each, are Kafka 4.3.1's, field by field.

Both systems run with share.assignment.interval.ms=0. With an interval kshare gives a member that joins its share at
once, which Kafka does when the interval is over (see docs/kafka-differences.md).

Which partitions a member gets depends on the topics' random ids in Kafka: of an assignment the number of partitions is
compared (test_assignor_like_kafka.py compares the rest). Quiet heartbeats, whose answers say only what the member
knows, are not noted where the system is waited for: how many there are depends on how long share coordinators and
controllers take.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from kshare_core.errors import ErrorCode as E
from kshare_wire.generated.api_keys import ApiKey
from support.clients.delivery import new_topic, produce, set_group, wait_for
from support.kafka.same_answers import SIMPLE, TOPIC, Asked, Pair, commit, running_pair, wait_for_coordinator
from support.kafka.whole_answers import Recording, fields_of, same_recordings

TIMEOUT_S = 30.0
SESSION_TIMEOUT_MS = "1500"
RETRIED = (E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    settings = {"group_share_min_session_timeout_ms": "1000"}
    with running_pair(tmp_path_factory.mktemp, **settings) as pair:
        for asked in (pair.kshare, pair.kafka):
            wait_for_coordinator(asked.requests, 0, "any")
        yield pair


class Group:
    """One share group of one system; each method notes the answer and what the group looks like then."""

    def __init__(self, asked: Asked, recording: Recording, group_id: str) -> None:
        self.asked = asked
        self.recording = recording
        self.group_id = group_id
        self.epochs: dict[str, int] = {}

    def beat(self, member_id: str, names: list[str] | None = None, epoch: int | None = None) -> Any:
        """One heartbeat, with the epoch that the member knows where none is given."""
        answer = self._ask(member_id, names, epoch)
        self._note(f"{member_id} {'' if names is None else names} {'' if epoch is None else epoch}", answer)
        return answer

    def told(self, member_id: str, label: str = "") -> None:
        """Heartbeats until the answer says something that the member does not know."""
        deadline = time.monotonic() + TIMEOUT_S
        known = self.epochs[member_id]
        while True:
            answer = self._ask(member_id, None, None)
            if int(answer.member_epoch) != known or answer.assignment is not None or int(answer.error_code):
                break
            assert time.monotonic() < deadline, f"{self.group_id}: nothing new for {member_id}"
            time.sleep(0.02)
        self._note(f"{member_id} is told {label}", answer)

    def _ask(self, member_id: str, names: list[str] | None, epoch: int | None) -> Any:
        while True:
            answer = self.asked.ask(
                ApiKey.SHARE_GROUP_HEARTBEAT,
                1,
                group_id=self.group_id,
                member_id=member_id,
                member_epoch=self.epochs[member_id] if epoch is None else epoch,
                subscribed_topic_names=names,
            )
            if E(int(answer.error_code)) not in RETRIED:
                break
            time.sleep(0.05)
        if not int(answer.error_code):
            self.epochs[member_id] = int(answer.member_epoch)
        return answer

    def _note(self, label: str, answer: Any) -> None:
        self.recording.note(label, counted(fields_of(answer, self.asked.topic_names())))
        self.described(label)

    def described(self, label: str) -> None:
        answer = self.asked.ask(ApiKey.SHARE_GROUP_DESCRIBE, 1, group_ids=[self.group_id])
        self.recording.note(f"{label}, described", counted(fields_of(answer, self.asked.topic_names())))


def counted(fields: Any) -> Any:
    """With the number of partitions for what they are."""
    if isinstance(fields, list):
        return [counted(each) for each in fields]
    if not isinstance(fields, dict):
        return fields
    return {name: len(value) if name == "partitions" else counted(value) for name, value in fields.items()}


def make_topic(asked: Asked, name: str, partitions: int = 1) -> None:
    new_topic(asked.records_bootstrap, partitions, name=name)
    know(asked, name)


def know(asked: Asked, name: str) -> None:
    def is_known() -> bool:
        try:
            asked.topic_id(name)
        except AssertionError:
            return False
        return True

    wait_for(is_known, f"{name} is known")


def grow(asked: Asked, name: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": asked.records_bootstrap})
    admin.create_partitions([NewPartitions(name, count)])[name].result(TIMEOUT_S)


def drop(asked: Asked, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": asked.records_bootstrap})
    admin.delete_topics([name])[name].result(TIMEOUT_S)
    asked.forget_topic(name)


@pytest.mark.timeout(180)
def test_members_come_and_go(pair: Pair) -> None:
    """Join, second member, repeated epochs, leave, rejoin with epoch 0, other subscriptions, the last member leaves."""

    def sequence(asked: Asked, recording: Recording) -> None:
        make_topic(asked, "come", 2)
        make_topic(asked, "other")
        group = Group(asked, recording, "comers")
        group.beat("m1", ["come"], 0)
        group.told("m1", "its first partitions")
        group.beat("m1")
        group.beat("m2", ["come"], 0)
        group.told("m1")
        group.beat("m2")
        group.beat("m1", ["come"])
        group.beat("m1", ["come", "missing"])
        group.beat("m1", ["come", "missing", "other"])
        group.told("m1", "the other topic")
        group.told("m2")
        group.beat("m2", None, -1)
        group.told("m1")
        group.beat("m1", ["come", "missing", "other"], 0)
        group.beat("m1")
        group.beat("m1", ["other"], 0)
        group.beat("m1", [])
        group.beat("m1")
        group.beat("m1", ["come"])
        group.beat("m1", None, -1)
        group.beat("m3", ["come", "other"], 0)
        group.beat("m3")

    steps = same_recordings(pair, sequence)
    assert steps[0][1]["member_epoch"] == 2, "the group begins with 1"
    assert len(steps) == 44


@pytest.mark.timeout(180)
def test_topics_come_grow_and_go(pair: Pair) -> None:
    def sequence(asked: Asked, recording: Recording) -> None:
        make_topic(asked, "steady", 2)
        group = Group(asked, recording, "followers")
        group.beat("m1", ["steady", "late"], 0)
        group.told("m1")
        group.beat("m2", ["steady"], 0)
        group.told("m1")
        make_topic(asked, "late")
        group.told("m1", "that a topic was created")
        group.told("m1", "its partitions")
        group.told("m2")
        grow(asked, "steady", 4)
        group.told("m1", "that partitions were added")
        group.told("m1", "them")
        group.told("m2")
        drop(asked, "late")
        group.told("m1", "that a topic was deleted")
        group.told("m2")
        make_topic(asked, "late", 2)
        group.told("m2", "that it was made again")
        group.told("m2")
        group.told("m1")

    same_recordings(pair, sequence)


@pytest.mark.timeout(180)
def test_a_member_that_is_silent_expires(pair: Pair) -> None:
    def sequence(asked: Asked, recording: Recording) -> None:
        make_topic(asked, "quiet", 2)
        set_group(asked.bootstrap, "expiring", session_timeout_ms=SESSION_TIMEOUT_MS)
        group = Group(asked, recording, "expiring")
        group.beat("m1", ["quiet"], 0)
        group.told("m1")
        group.beat("m2", ["quiet"], 0)
        group.told("m1")
        group.told("m1", "that the other expired")
        group.beat("m2")
        group.beat("m2", ["quiet"], 0)

    same_recordings(pair, sequence)


@pytest.mark.timeout(180)
def test_a_group_of_a_deleted_groups_id_begins_anew(pair: Pair) -> None:
    """After alterations of offsets, which clients see no epoch of."""

    def sequence(asked: Asked, recording: Recording) -> None:
        make_topic(asked, "altered", 2)
        produce(asked.records_bootstrap, "altered", ["one"])
        group = Group(asked, recording, "again")
        _alter(group, 0)
        _alter(group, 1)
        group.beat("m1", ["altered"], 0)
        group.told("m1")  # of the partition whose offset was not altered, and is being initialized
        group.beat("m1", None, -1)
        _alter(group, 0)
        deletion = {"group_id": "again", "topics": [{"topic_name": "altered"}]}
        recording.note(
            "delete offsets",
            fields_of(asked.ask(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, **deletion), asked.topic_names()),
        )
        group.described("offsets deleted")
        group.beat("m1", ["altered"], 0)
        group.told("m1")
        group.beat("m1", None, -1)
        recording.note("delete", fields_of(asked.ask(ApiKey.DELETE_GROUPS, 2, groups_names=["again"]), {}))
        group.described("deleted")
        group.beat("m1", ["altered"], 0)
        group.told("m1")

    steps = same_recordings(pair, sequence)
    epochs = [answer["member_epoch"] for _, answer in steps if "member_epoch" in answer]
    assert epochs == [2, 3, -1, 5, 6, -1, 2, 3]


def _alter(group: Group, start_offset: int) -> None:
    partitions = [{"partition_index": 0, "start_offset": start_offset}]
    topics = [{"topic_name": "altered", "partitions": partitions}]
    answer = group.asked.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, group_id=group.group_id, topics=topics)
    group.recording.note(f"alter to {start_offset}", fields_of(answer, group.asked.topic_names()))
    group.described("altered")


JOINING: dict[str, Any] = {
    "group_id": "refusing",
    "member_id": "m3",
    "member_epoch": 0,
    "subscribed_topic_names": ["come-to-errors"],
}


@pytest.mark.timeout(180)
def test_errors_and_their_words(pair: Pair) -> None:
    """Where Kafka has a message, it is the same; where it has none, ours may say what is wrong."""

    def sequence(asked: Asked, recording: Recording) -> None:
        make_topic(asked, "come-to-errors")
        group = Group(asked, recording, "refusing")
        group.beat("m1", ["come-to-errors"], 0)
        group.told("m1")
        group.beat("m2", ["come-to-errors"], 0)
        group.told("m1")
        changes: list[dict[str, Any]] = [
            {"member_id": "m1", "member_epoch": 77},
            {"member_id": "m1", "member_epoch": 1},
            {"member_id": "m3", "member_epoch": 1},
            {"member_id": "m3", "member_epoch": -1},
            {"member_epoch": -2},
            {"subscribed_topic_names": None},
            {"subscribed_topic_names": []},
            {"rack_id": ""},
            {"group_id": ""},
            {"group_id": "nobody", "member_epoch": 1},
            {"member_id": ""},
            {"member_id": "m" * 37},
            {"member_id": "m" * 300},
        ]
        for change in changes:
            answer = fields_of(asked.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, **{**JOINING, **change}), {})
            if "member_id" in change and len(change["member_id"]) != 2:
                del answer["error_message"]
            recording.note(repr(change)[:60], answer)
        group.beat("m1", None, group.epochs["m1"])

    steps = same_recordings(pair, sequence)
    assert sum(answer.get("error_code", "none") not in ("none", 0) for _, answer in steps) == 13


@pytest.mark.timeout(180)
def test_a_group_of_another_type_takes_no_share_member(pair: Pair) -> None:
    def sequence(asked: Asked, recording: Recording) -> None:
        make_topic(asked, TOPIC)
        commit(asked.requests, SIMPLE)
        for change in ({"group_id": SIMPLE}, {"group_id": SIMPLE, "member_epoch": 1}):
            answer = asked.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, **{**JOINING, **change})
            recording.note(repr(change), fields_of(answer, {}))

    steps = same_recordings(pair, sequence)
    assert all(answer["error_code"] not in ("none", 0) for _, answer in steps)
