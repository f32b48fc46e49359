"""Ordinary consumers of every client in groups of the classic protocol; and Kafka's tools for such groups.

They rebalance, commit and resume, also when the coordinator is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from support.clients.administration import broker_addresses
from support.clients.delivery import new_topic, produce, wait_for
from support.clusters.kshare_cluster import KshareCluster
from support.kafka.java_programs import java_command, run_tool

TIMEOUT_S = 60.0
GROUP_COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
SETTINGS = {"group.initial.rebalance.delay.ms": "200", "group.min.session.timeout.ms": "1000"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KshareCluster]:
    with KshareCluster(tmp_path_factory.mktemp("kshare"), SETTINGS) as running:
        yield running


@pytest.fixture
def bootstrap(cluster: KshareCluster) -> str:
    return cluster.bootstrap


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(bootstrap: str) -> str:
    return new_topic(bootstrap, 3)


class Member:
    """A confluent-kafka Consumer that is polled until something holds; what it was told of rebalances is kept."""

    def __init__(self, bootstrap: str, group: str, topic: str, **settings: Any) -> None:
        self.values: list[str] = []
        self.rebalances = 0
        self.errors: list[KafkaError] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 300,
                "error_cb": self.errors.append,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self.consumer.subscribe([topic], on_assign=self._count, on_revoke=self._count, on_lost=self._count)

    def _count(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1

    def poll(self) -> None:
        message = self.consumer.poll(0.05)
        if message is None:
            return
        error = message.error()
        if error is not None:
            self.errors.append(error)
        else:
            value = message.value()
            assert value is not None
            self.values.append(value.decode())

    @property
    def partitions(self) -> list[int]:
        return sorted(partition.partition for partition in self.consumer.assignment())

    def commit(self) -> None:
        self.consumer.commit(asynchronous=False)

    def close(self) -> None:
        self.consumer.close()


def poll_until(members: list[Member], condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: {[(each.partitions, each.values) for each in members]}"
        for member in members:
            member.poll()


def poll_for(members: list[Member], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for member in members:
            member.poll()


def produce_to_all(bootstrap: str, topic: str, name: str, count: int = 10) -> set[str]:
    """The same number of records into each of three partitions; returns all values."""
    found: set[str] = set()
    for partition in range(3):
        values = [f"{name}-{partition}-{index}" for index in range(count)]
        produce(bootstrap, topic, values, partition)
        found.update(values)
    return found


@pytest.mark.timeout(180)
def test_three_members_share_the_partitions_commit_and_resume(bootstrap: str, topic: str, group: str) -> None:
    first = produce_to_all(bootstrap, topic, "first")
    members = [Member(bootstrap, group, topic)]
    poll_until(members, lambda: len(members[0].values) == 30, "the only member reads everything")
    assert set(members[0].values) == first
    members[0].commit()

    members += [Member(bootstrap, group, topic) for _ in range(2)]
    poll_until(members, lambda: sorted(each.partitions for each in members) == [[0], [1], [2]], "one partition each")
    second = produce_to_all(bootstrap, topic, "second")
    poll_until(members, lambda: sum(len(each.values) for each in members) == 60, "the second records")
    assert {value for each in members for value in each.values} == first | second  # nothing twice
    for member in members:
        member.commit()

    members.pop(1).close()
    poll_until(members, lambda: sorted(p for each in members for p in each.partitions) == [0, 1, 2], "two take all")
    for member in members:
        member.close()

    third = produce_to_all(bootstrap, topic, "third")
    resumed = Member(bootstrap, group, topic)
    poll_until([resumed], lambda: len(resumed.values) == 30, "a new member goes on where the others were")
    assert set(resumed.values) == third
    resumed.close()


def member_ids(admin: AdminClient, group: str) -> list[str]:
    described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
    return sorted(member.member_id for member in described.members)


@pytest.mark.timeout(180)
def test_members_carry_on_when_the_coordinator_is_killed(
    cluster: KshareCluster, bootstrap: str, topic: str, group: str
) -> None:
    members = [Member(bootstrap, group, topic) for _ in range(3)]
    poll_until(members, lambda: sorted(each.partitions for each in members) == [[0], [1], [2]], "one partition each")
    told = [each.rebalances for each in members]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    ids = member_ids(admin, group)

    pid = cluster.role_pid("coordinator")
    os.kill(pid, signal.SIGKILL)
    values = produce_to_all(bootstrap, topic, "after")
    poll_until(members, lambda: sum(len(each.values) for each in members) == 30, "records go on")
    wait_for(lambda: cluster.role_pid("coordinator") not in (None, pid), "the coordinator is back", TIMEOUT_S)
    poll_for(members, 8.0)  # longer than a session
    assert [each.rebalances for each in members] == told, "nobody rebalanced"
    for member in members:
        member.commit()
    assert member_ids(admin, group) == ids
    for member in members:
        member.close()
    late = Member(bootstrap, group, topic)
    poll_until([late], lambda: late.partitions == [0, 1, 2], "a new member gets everything")
    poll_for([late], 1.0)
    assert late.values == [], "everything was committed"
    assert len(values) == 30
    late.close()


@pytest.mark.timeout(180)
def test_a_static_member_comes_back_without_a_rebalance(bootstrap: str, topic: str, group: str) -> None:
    settings = {"session_timeout_ms": 30_000}
    one, two = (Member(bootstrap, group, topic, group_instance_id=name, **settings) for name in ("one", "two"))
    poll_until([one, two], lambda: sorted(one.partitions + two.partitions) == [0, 1, 2], "all assigned")
    poll_until([one, two], lambda: bool(one.partitions and two.partitions), "both have something")
    had, told = two.partitions, one.rebalances
    two.close()  # a static member does not leave when it closes
    poll_for([one], 1.0)
    two = Member(bootstrap, group, topic, group_instance_id="two", **settings)
    poll_until([one, two], lambda: two.partitions == had, "the same partitions again")
    assert one.rebalances == told

    usurper = Member(bootstrap, group, topic, group_instance_id="two", **settings)
    poll_until([one, two, usurper], lambda: usurper.partitions == had, "the newest one has them")
    poll_until([one, two, usurper], lambda: bool(two.errors), "the former one is fenced")
    assert any(error.code() == KafkaError._FATAL or error.fatal() for error in two.errors)
    for member in (one, usurper):
        member.close()


class Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self) -> None:
        self.assigned: set[int] = set()

    async def on_partitions_revoked(self, revoked: set[Any]) -> None:
        self.assigned = set()

    async def on_partitions_assigned(self, assigned: set[Any]) -> None:
        self.assigned = {partition.partition for partition in assigned}


@pytest.mark.timeout(180)
def test_aiokafka_consumers_rebalance_commit_and_resume(bootstrap: str, topic: str, group: str) -> None:
    def consumer() -> Any:
        return AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=300,
        )

    async def take(consumers: list[Any], count: int) -> set[str]:
        found: set[str] = set()
        async with asyncio.timeout(TIMEOUT_S):
            while len(found) < count:
                for each in consumers:
                    for records in (await each.getmany(timeout_ms=100)).values():
                        found.update(record.value.decode() for record in records)
        return found

    async def main() -> None:
        first = produce_to_all(bootstrap, topic, "first")
        seen = [Rebalances(), Rebalances()]
        one, two = consumer(), consumer()
        one.subscribe([topic], listener=seen[0])
        await one.start()
        assert await take([one], 30) == first
        await one.commit()
        two.subscribe([topic], listener=seen[1])
        await two.start()
        async with asyncio.timeout(TIMEOUT_S):
            while not (seen[0].assigned and seen[1].assigned and seen[0].assigned | seen[1].assigned == {0, 1, 2}):
                await asyncio.sleep(0.1)
        assert not seen[0].assigned & seen[1].assigned
        second = produce_to_all(bootstrap, topic, "second")
        assert await take([one, two], 30) == second
        await one.commit()
        await two.commit()
        await one.stop()
        await two.stop()
        third = produce_to_all(bootstrap, topic, "third")
        resumed = consumer()
        resumed.subscribe([topic])
        await resumed.start()
        assert await take([resumed], 30) == third
        await resumed.stop()

    asyncio.run(main())


class JavaConsumer:
    """Kafka's VerifiableConsumer: a Java KafkaConsumer that says what happens to it; a context manager."""

    def __init__(self, bootstrap: str, group: str, topic: str, *arguments: str) -> None:
        command = java_command("org.apache.kafka.tools.VerifiableConsumer", "--bootstrap-server", bootstrap)
        command += ["--group-id", group, "--topic", topic, "--group-protocol", "classic", "--reset-policy", "earliest"]
        command += ["--session-timeout", "6000", *arguments]
        self.events: list[dict[str, Any]] = []
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self.events.append(json.loads(line))

    def __enter__(self) -> JavaConsumer:
        return self

    def __exit__(self, *unused: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(TIMEOUT_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join()
            assert self._process.stdout is not None
            self._process.stdout.close()

    @property
    def partitions(self) -> list[int]:
        """Of the newest assignment."""
        changes = [event for event in self.events if event["name"].startswith("partitions_")]
        if not changes or changes[-1]["name"] != "partitions_assigned":
            return []
        return sorted(partition["partition"] for partition in changes[-1]["partitions"])

    @property
    def consumed(self) -> int:
        return sum(event["count"] for event in self.events if event["name"] == "records_consumed")

    @property
    def committed(self) -> dict[int, int]:
        """By partition, the newest; AssertionError where a commit failed."""
        found: dict[int, int] = {}
        for event in self.events:
            if event["name"] == "offsets_committed":
                assert event["success"], event
                found.update({each["partition"]: each["offset"] for each in event["offsets"]})
        return found


@pytest.mark.timeout(240)
@pytest.mark.parametrize("assignor", ["RangeAssignor", "CooperativeStickyAssignor"])
def test_java_consumers_rebalance_commit_and_resume(bootstrap: str, topic: str, group: str, assignor: str) -> None:
    strategy = ("--assignment-strategy", f"org.apache.kafka.clients.consumer.{assignor}")
    produce_to_all(bootstrap, topic, "first")
    with JavaConsumer(bootstrap, group, topic, *strategy) as one:
        wait_for(lambda: one.committed == {0: 10, 1: 10, 2: 10}, "the first records are committed", TIMEOUT_S)
        with JavaConsumer(bootstrap, group, topic, *strategy) as two:
            wait_for(lambda: two.partitions != [], "the second one has something", TIMEOUT_S)
            produce_to_all(bootstrap, topic, "second")
            wait_for(lambda: one.consumed + two.consumed == 60, "the second records", TIMEOUT_S)
            wait_for(
                lambda: {**one.committed, **two.committed} == {0: 20, 1: 20, 2: 20} or two.committed != {},
                "the second records are committed",
                TIMEOUT_S,
            )
    produce_to_all(bootstrap, topic, "third")
    with JavaConsumer(bootstrap, group, topic, *strategy, "--group-instance-id", "static") as resumed:
        wait_for(lambda: resumed.committed == {0: 30, 1: 30, 2: 30}, "the third records", TIMEOUT_S)
        assert resumed.consumed == 30


@pytest.mark.timeout(180)
def test_clients_of_several_kinds_in_one_group(bootstrap: str, topic: str, group: str) -> None:
    strategy = ("--assignment-strategy", "org.apache.kafka.clients.consumer.RangeAssignor")
    member = Member(bootstrap, group, topic, partition_assignment_strategy="range")
    with JavaConsumer(bootstrap, group, topic, *strategy) as java:
        # Either may be alone at first, and would read again what it did not commit once the other one came.

        def both_share() -> bool:
            return 0 < len(member.partitions) < 3 and sorted(member.partitions + java.partitions) == [0, 1, 2]

        poll_until([member], both_share, "both share")
        values = produce_to_all(bootstrap, topic, "x")
        poll_until([member], lambda: len(member.values) + java.consumed == len(values), "all records once")
    poll_until([member], lambda: member.partitions == [0, 1, 2], "the other one has left")
    member.close()


def rows(text: str, group: str) -> list[list[str]]:
    """The lines of a table that begin with the group's id."""
    return [line.split() for line in text.splitlines() if line.split()[:1] == [group]]


CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"


def console_consumes(bootstrap: str, topic: str, group: str, *arguments: str) -> int:
    """How many of 30 records the console consumer printed."""
    limits = ("--max-messages", "30", "--timeout-ms", "30000")
    told = run_tool(bootstrap, CONSOLE, "--topic", topic, "--group", group, *limits, *arguments)
    return len([line for line in told.splitlines() if line.startswith("x-")])


@pytest.fixture
def polled_member(bootstrap: str, topic: str, group: str) -> Iterator[Member]:
    """A member that has consumed and committed ten records of each partition, polled all the time."""
    produce_to_all(bootstrap, topic, "x")
    member = Member(bootstrap, group, topic, client_id="me")
    poll_until([member], lambda: len(member.values) == 30, "all records")
    member.commit()
    stop = threading.Event()

    def keep_polling() -> None:
        while not stop.is_set():
            member.poll()

    poller = threading.Thread(target=keep_polling)
    poller.start()
    yield member
    stop.set()
    poller.join()
    member.close()


@pytest.mark.timeout(240)
def test_kafkas_tools_for_a_group_with_members(bootstrap: str, topic: str, group: str, polled_member: Member) -> None:
    def told(*arguments: str, fails: bool = False) -> str:
        return run_tool(bootstrap, GROUP_COMMAND, *arguments, fails=fails)

    of_group = ("--describe", "--group", group)
    assert group in told("--list").split()
    assert rows(told("--list", "--state", "Stable"), group) == [[group, "Stable"]]
    assert [row[1].lower() for row in rows(told("--list", "--type", "classic"), group)] == ["classic"]
    offsets = rows(told(*of_group), group)
    assert sorted(row[1:6] for row in offsets) == [[topic, str(number), "10", "10", "0"] for number in range(3)]
    assert {row[8] for row in offsets} == {"me"}
    (of_member,) = rows(told(*of_group, "--members", "--verbose"), group)
    assert of_member[3:5] == ["me", "3"]
    assert f"{topic}:0,1,2" in " ".join(of_member) or f"{topic}(0,1,2)" in " ".join(of_member)
    (state,) = rows(told(*of_group, "--state"), group)
    coordinators = [[address, f"({broker})"] for broker, address in enumerate(broker_addresses(bootstrap), 1)]
    assert state[1:3] in coordinators and state[3:] == ["range", "Stable", "1"]

    assert "GroupNotEmptyException" in told("--delete", "--group", group, fails=True)
    reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    assert "current state is Stable" in told(*reset, fails=True)
    subscribed = told("--delete-offsets", "--group", group, "--topic", topic, fails=True)
    assert "subscribed to the topic" in subscribed or "GroupSubscribedToTopic" in subscribed


@pytest.mark.timeout(240)
def test_kafkas_tools_for_a_group_without_members(bootstrap: str, topic: str, group: str) -> None:
    def told(*arguments: str, fails: bool = False) -> str:
        return run_tool(bootstrap, GROUP_COMMAND, *arguments, fails=fails)

    produce_to_all(bootstrap, topic, "x")
    assert console_consumes(bootstrap, topic, group, "--from-beginning") == 30
    (state,) = rows(told("--describe", "--group", group, "--state"), group)
    assert state[-2:] == ["Empty", "0"]
    reset = ("--reset-offsets", "--group", group, "--topic", topic)
    planned = told(*reset, "--to-earliest", "--dry-run")
    assert sorted(row[1:4] for row in rows(planned, group)) == [[topic, str(number), "0"] for number in range(3)]
    told(*reset, "--to-earliest", "--execute")
    assert console_consumes(bootstrap, topic, group) == 30
    shifted = told(*reset, "--shift-by", "-2", "--dry-run")
    assert sorted(row[3] for row in rows(shifted, group)) == ["8"] * 3

    told("--delete-offsets", "--group", group, "--topic", f"{topic}:0")
    left = [row[2] for row in rows(told("--describe", "--group", group), group) if row[3] != "-"]
    assert sorted(left) == ["1", "2"]
    assert "successful" in told("--delete", "--group", group)
    assert group not in told("--list").split()
    assert "GroupIdNotFound" in told("--delete", "--group", group, fails=True)
