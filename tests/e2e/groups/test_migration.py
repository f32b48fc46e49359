"""Clients of a group are changed one after the other from the classic protocol to the consumer protocol, and back.

The same on kshare and on Apache Kafka 4.3.1, with a confluent-kafka and a Java client and a stream of records that does
not stop: every record is processed, no partition belongs to two clients at a time, committed offsets stay, and what
is said of the group at each step is the same.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from support.clients.delivery import new_topic, running_system
from support.groups.classic_wire import ClassicConnection
from support.groups.consumer_wire import GroupConnection
from support.kafka.java_programs import java_command

PARTITIONS = 4
STEP_TIMEOUT_S = 60.0
CLOCK_TOLERANCE_MS = 5
SETTINGS = {
    "group_consumer_min_heartbeat_interval_ms": "300",
    "group_consumer_heartbeat_interval_ms": "300",
    "group_min_session_timeout_ms": "1000",
    "group_initial_rebalance_delay_ms": "300",
}
CLASSIC, CONSUMER = "classic", "consumer"


class Change(NamedTuple):
    """At `time_ms` a client was given partitions, or gave them up."""

    time_ms: int
    is_assigned: bool
    partitions: tuple[int, ...]


class ConfluentMember:
    """A confluent-kafka Consumer on a thread of its own; commits each record when it was processed."""

    def __init__(self, bootstrap: str, group: str, topic: str, protocol: str) -> None:
        self.values: list[str] = []
        self.changes: list[Change] = []
        self._stopping = threading.Event()
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
        if protocol == CLASSIC:
            settings |= {"session.timeout.ms": 30_000, "heartbeat.interval.ms": 300}
        self._consumer = Consumer(settings)
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._note(True, partitions)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._note(False, partitions)

    def _note(self, is_assigned: bool, partitions: list[TopicPartition]) -> None:
        numbers = tuple(sorted(each.partition for each in partitions))
        self.changes.append(Change(time.time_ns() // 1_000_000, is_assigned, numbers))

    def _run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            value = message.value()
            assert value is not None
            self.values.append(value.decode())
            with suppress(KafkaException):  # the group changed meanwhile: whoever has the partition now reads it again
                self._consumer.commit(message=message, asynchronous=False)
        self._consumer.close()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()


class JavaMember:
    """Kafka's VerifiableConsumer: a Java KafkaConsumer that says what happens to it, and commits after each poll."""

    def __init__(self, bootstrap: str, group: str, topic: str, protocol: str) -> None:
        command = java_command(
            "org.apache.kafka.tools.VerifiableConsumer", "--bootstrap-server", bootstrap, "--verbose"
        )
        command += ["--group-id", group, "--topic", topic, "--group-protocol", protocol, "--reset-policy", "earliest"]
        if protocol == CLASSIC:
            command += ["--session-timeout", "30000"]
        self.values: list[str] = []
        self.changes: list[Change] = []
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            if event["name"] == "record_data":
                self.values.append(event["value"])
            elif event["name"] in ("partitions_assigned", "partitions_revoked"):
                numbers = tuple(sorted(each["partition"] for each in event["partitions"]))
                self.changes.append(Change(event["timestamp"], event["name"] == "partitions_assigned", numbers))

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STEP_TIMEOUT_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._thread.join()
            assert self._process.stdout is not None
            self._process.stdout.close()


Member = ConfluentMember | JavaMember


class Stream:
    """Records that come all the time; a context manager that stops them."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.values: list[str] = []
        self._bootstrap, self._topic = bootstrap, topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self.stop()

    def _run(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 0})
        while not self._stopping.wait(0.02):
            value = str(len(self.values))
            producer.produce(self._topic, value.encode(), partition=len(self.values) % PARTITIONS)
            self.values.append(value)
        assert producer.flush(STEP_TIMEOUT_S) == 0

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


class Group:
    """The clients that are and those that were, and what the coordinator says of the group."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.id = f"group-{uuid.uuid4().hex[:8]}"
        self.topic = new_topic(bootstrap, PARTITIONS)
        self.members: list[Member] = []
        self.former: list[Member] = []

    def start(self, kind: type[Member], protocol: str) -> None:
        self.members.append(kind(self.bootstrap, self.id, self.topic, protocol))

    def replace_first(self, protocol: str) -> None:
        """The oldest client is closed, and one of its kind is started with the protocol."""
        member = self.members.pop(0)
        member.close()
        self.former.append(member)
        self.start(type(member), protocol)

    @property
    def everybody(self) -> list[Member]:
        return [*self.former, *self.members]

    def processed(self) -> list[str]:
        return [value for member in self.everybody for value in list(member.values)]

    def described(self) -> tuple[str, str, list[str]]:
        """The type of the group, its state, and which protocol each member uses."""
        with ClassicConnection(self.bootstrap) as wire:
            listed = wire.list_groups().get(self.id)
            if listed is None:
                return "", "", []
            if listed[2] == CLASSIC:
                described = wire.describe(self.id)
                return CLASSIC, described.group_state, [CLASSIC for _ in described.members]
        with GroupConnection(self.bootstrap) as connection:
            group: Any = connection.describe(self.id)
        kinds = sorted(CONSUMER if member.member_type == 1 else CLASSIC for member in group.members)
        return CONSUMER, group.group_state, kinds

    def wait_until(self, kind: str, protocols: list[str]) -> None:
        """The group is stable, has members of these protocols, and all partitions are the clients'."""
        wait_for(lambda: self.described() == (kind, "Stable", sorted(protocols)), lambda: str(self.described()))
        wait_for(
            lambda: sorted(number for member in self.members for number in held(member)) == list(range(PARTITIONS)),
            lambda: str([held(member) for member in self.members]),
        )

    def committed(self) -> dict[int, int]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.id, "log_level": 0})
        try:
            places = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
            return {each.partition: each.offset for each in consumer.committed(places, timeout=STEP_TIMEOUT_S)}
        finally:
            consumer.close()


def held(member: Member) -> set[int]:
    """The partitions that a client has now."""
    found: set[int] = set()
    for change in list(member.changes):
        found = found | set(change.partitions) if change.is_assigned else found - set(change.partitions)
    return found


def wait_for(condition: Callable[[], bool], found: Callable[[], str]) -> None:
    deadline = time.monotonic() + STEP_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, found()
        time.sleep(0.1)


def spans(member: Member) -> list[tuple[int, int, int]]:
    """Partition, from when and until when the client had it."""
    found: list[tuple[int, int, int]] = []
    since: dict[int, int] = {}
    for change in member.changes:
        for number in change.partitions:
            if change.is_assigned:
                since.setdefault(number, change.time_ms)
            elif number in since:
                found.append((number, since.pop(number), change.time_ms))
    return [*found, *((number, begin, 1 << 62) for number, begin in since.items())]


def check_one_owner_at_a_time(members: list[Member]) -> None:
    every = sorted((*span, index) for index, member in enumerate(members) for span in spans(member))
    for (number, begin, end, index), (other, next_begin, _, other_index) in itertools.pairwise(every):
        if number == other and index != other_index:
            assert next_begin >= end - CLOCK_TOLERANCE_MS, f"partition {number}: {(begin, end)}, then {next_begin}"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["kshare", "kafka"])
def test_a_rolling_upgrade_and_a_downgrade(kind: str, tmp_path: Path) -> None:
    with running_system(kind, tmp_path, **SETTINGS) as system:
        group = Group(system.bootstrap)
        try:
            with Stream(system.bootstrap, group.topic) as stream:
                roll_there_and_back(group)
                stream.stop()
                wait_for(
                    lambda: set(group.processed()) >= set(stream.values),
                    lambda: f"{len(set(stream.values) - set(group.processed()))} records are missing",
                )
            assert set(group.processed()) == set(stream.values)
            counts = {number: len(stream.values[number::PARTITIONS]) for number in range(PARTITIONS)}
            wait_for(lambda: group.committed() == counts, lambda: f"{group.committed()}, not {counts}")
            twice = len(group.processed()) - len(stream.values)
            assert twice < len(stream.values) / 4, f"{twice} of {len(stream.values)} records were processed again"
        finally:
            for member in group.members:
                member.close()
        check_one_owner_at_a_time(group.everybody)


def roll_there_and_back(group: Group) -> None:
    for kind in (ConfluentMember, JavaMember, ConfluentMember):
        group.start(kind, CLASSIC)
    group.wait_until(CLASSIC, [CLASSIC] * 3)
    before = group.committed()
    for done in (1, 2, 3):
        group.replace_first(CONSUMER)
        group.wait_until(CONSUMER, [CONSUMER] * done + [CLASSIC] * (3 - done))
    assert all(group.committed()[number] >= offset for number, offset in before.items())
    for done in (1, 2, 3):
        group.replace_first(CLASSIC)
        group.wait_until(CONSUMER if done < 3 else CLASSIC, [CLASSIC] * done + [CONSUMER] * (3 - done))
