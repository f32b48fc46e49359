"""Real clients in consumer groups of KIP-848 (group.protocol=consumer): confluent-kafka, Java, and Kafka's tool."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer

from support.clients.delivery import new_topic, produce
from support.clusters.kshare_cluster import KshareCluster
from support.kafka.java_programs import java_command, run_tool

SETTINGS = {
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.session.timeout.ms": "2000",
    "group.consumer.session.timeout.ms": "6000",
    "auto.create.topics.enable": "false",
}
PARTITIONS = 6
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KshareCluster]:
    with KshareCluster(tmp_path_factory.mktemp("kshare"), SETTINGS) as running:
        yield running


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


class Members:
    """Consumers of one group in this process, polled in turn; a record counts when its offset is committed."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 500,
            "log_level": 0,
        }
        self._topic = topic
        self.consumers: list[Consumer] = []
        self.values: list[str] = []

    def add(self, **settings: Any) -> None:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        consumer = Consumer({**self._settings, **given})
        consumer.subscribe([self._topic])
        self.consumers.append(consumer)

    def poll(self) -> None:
        for consumer in self.consumers:
            message = consumer.poll(0.02)
            if message is not None and message.error() is None:
                value = message.value()
                assert value is not None
                self.values.append(value.decode())
                consumer.commit(message=message, asynchronous=False)

    def poll_until(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {self.sizes()}, {len(self.values)} values"
            self.poll()

    def sizes(self) -> list[int]:
        return [len(consumer.assignment()) for consumer in self.consumers]

    def partitions(self) -> list[int]:
        return sorted(place.partition for consumer in self.consumers for place in consumer.assignment())

    def close(self) -> None:
        while self.consumers:
            self.consumers.pop().close()


def produce_everywhere(bootstrap: str, topic: str, prefix: str) -> list[str]:
    """Ten values to each partition."""
    values = []
    for partition in range(PARTITIONS):
        mine = [f"{prefix}-{partition}-{number}" for number in range(10)]
        produce(bootstrap, topic, mine, partition)
        values += mine
    return values


@pytest.mark.quiet
def test_confluent_consumers_rebalance_commit_and_go_on_after_the_coordinator_was_killed(
    cluster: KshareCluster, group: str
) -> None:
    topic = new_topic(cluster.bootstrap, PARTITIONS)
    expected = produce_everywhere(cluster.bootstrap, topic, "first")
    members = Members(cluster.bootstrap, group, topic)
    members.add()
    members.poll_until(lambda: len(members.values) == len(expected), "all records to the only member")
    for count in (2, 3):
        members.add()
        wanted = [PARTITIONS // count] * count
        members.poll_until(lambda wanted=wanted: members.sizes() == wanted, f"{count} members share the partitions")
        assert members.partitions() == list(range(PARTITIONS))
    expected += produce_everywhere(cluster.bootstrap, topic, "second")
    members.poll_until(lambda: len(members.values) >= len(expected), "all records to three members")
    before = [sorted(place.partition for place in consumer.assignment()) for consumer in members.consumers]

    cluster.wait_until_gone(cluster.kill_role("coordinator"))
    cluster.role_pid("coordinator")
    expected += produce_everywhere(cluster.bootstrap, topic, "third")
    members.poll_until(lambda: len(members.values) >= len(expected), "all records after the coordinator was killed")
    after = [sorted(place.partition for place in consumer.assignment()) for consumer in members.consumers]
    assert after == before, "members carry on without a rebalance"
    assert sorted(members.values) == sorted(expected), "each once: what was committed is not read again"

    members.consumers.pop().close()
    members.poll_until(lambda: members.partitions() == list(range(PARTITIONS)), "two members share the partitions")
    members.close()
    members.add()  # resumes where the group ended
    expected += produce_everywhere(cluster.bootstrap, topic, "fourth")
    members.poll_until(lambda: len(members.values) >= len(expected), "what was produced since")
    assert sorted(members.values) == sorted(expected)
    members.close()


def test_a_static_member_comes_back_to_its_partitions(cluster: KshareCluster, group: str) -> None:
    topic = new_topic(cluster.bootstrap, PARTITIONS)
    members = Members(cluster.bootstrap, group, topic)
    members.add(group_instance_id="one")
    members.add(group_instance_id="two")
    members.poll_until(lambda: members.sizes() == [3, 3], "two members share the partitions")
    kept = [place.partition for place in members.consumers[0].assignment()]
    mine = [place.partition for place in members.consumers[1].assignment()]
    members.consumers.pop().close()
    members.add(group_instance_id="two")
    members.poll_until(lambda: members.sizes() == [3, 3], "the member is back")
    assert [place.partition for place in members.consumers[0].assignment()] == kept
    assert sorted(place.partition for place in members.consumers[1].assignment()) == sorted(mine)
    members.close()


def start_java(*arguments: str) -> subprocess.Popen[str]:
    command = java_command("GroupConsumer", *arguments)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> list[list[str]]:
    """The lines of a GroupConsumer, split into words."""
    output, errors = process.communicate(timeout=TIMEOUT_S * 2)
    assert process.returncode == 0, output[-2000:] + errors[-4000:]
    return [line.split() for line in output.splitlines()]


def values_of(lines: list[list[str]]) -> list[str]:
    return sorted(line[3] for line in lines if line[0] == "record")


def test_java_consumers_subscribe_by_a_regular_expression(cluster: KshareCluster, group: str) -> None:
    """The broker looks it up: topics that are created later come in without the client asking for metadata."""
    prefix = f"orders-{uuid.uuid4().hex[:8]}"
    first = new_topic(cluster.bootstrap, 2, name=f"{prefix}-eu")
    new_topic(cluster.bootstrap, 1, name=f"not-{prefix}-eu")
    produce(cluster.bootstrap, first, ["eu-0"], 0)
    produce(cluster.bootstrap, first, ["eu-1"], 1)
    process = start_java(cluster.bootstrap, group, "regex", f"{prefix}-[a-z]+", "3")
    wait_for_members(cluster.bootstrap, group, 1)
    later = new_topic(cluster.bootstrap, 1, name=f"{prefix}-us")
    produce(cluster.bootstrap, later, ["us-0"])
    lines = finished(process)
    assert values_of(lines) == ["eu-0", "eu-1", "us-0"]
    assigned = {place for line in lines if line[0] == "assigned" and len(line) > 1 for place in line[1].split(",")}
    assert assigned == {f"{first}-0", f"{first}-1", f"{later}-0"}


def test_java_and_confluent_members_share_a_group(cluster: KshareCluster, group: str) -> None:
    topic = new_topic(cluster.bootstrap, PARTITIONS)
    members = Members(cluster.bootstrap, group, topic)
    members.add()
    members.poll_until(lambda: members.sizes() == [PARTITIONS], "all partitions to the only member")
    process = start_java(cluster.bootstrap, group, "names", topic, "30")
    members.poll_until(lambda: members.sizes() == [3], "half of the partitions to the Java member")
    expected = produce_everywhere(cluster.bootstrap, topic, "both")
    members.poll_until(lambda: len(members.values) >= 30, "half of the records")
    lines = finished(process)
    assert sorted([*members.values, *values_of(lines)]) == sorted(expected)
    members.poll_until(lambda: members.sizes() == [PARTITIONS], "the Java member left")
    members.close()


def tool(bootstrap: str, *arguments: str) -> list[list[str]]:
    """What kafka-consumer-groups prints, split into words; without empty lines."""
    name = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    return [line.split() for line in run_tool(bootstrap, name, *arguments).splitlines() if line.strip()]


def table(lines: list[list[str]]) -> list[dict[str, str]]:
    header, *rows = lines[next(index for index, line in enumerate(lines) if line[0] == "GROUP") :]
    return [dict(zip(header, row, strict=False)) for row in rows]


def wait_for_members(bootstrap: str, group: str, count: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        lines = tool(bootstrap, "--list", "--state")
        states = [line[-1] for line in lines if line[0] == group]
        if states == ["Stable"] or (states and not count):
            return
        assert time.monotonic() < deadline, lines


def test_kafkas_tool_lists_describes_and_deletes(cluster: KshareCluster, group: str) -> None:
    topic = new_topic(cluster.bootstrap, PARTITIONS)
    expected = produce_everywhere(cluster.bootstrap, topic, "tool")
    members = Members(cluster.bootstrap, group, topic)
    members.add(client_id="one", group_instance_id="first")
    members.add(client_id="two", group_instance_id="second")  # the tool leaves empty columns out
    members.poll_until(lambda: members.sizes() == [3, 3] and len(members.values) >= len(expected), "both consume")

    bootstrap = cluster.bootstrap
    listed = [line for line in tool(bootstrap, "--list", "--type") if line[0] == group]
    assert [line[1].lower() for line in listed] == ["consumer"]
    offsets = table(tool(bootstrap, "--describe", "--group", group, "--offsets"))
    assert {row["PARTITION"]: (row["CURRENT-OFFSET"], row["LAG"]) for row in offsets} == {
        str(partition): ("10", "0") for partition in range(PARTITIONS)
    }
    (state,) = table(tool(bootstrap, "--describe", "--group", group, "--state", "--verbose"))
    assert {"STATE", "GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH", "#MEMBERS"} <= state.keys(), state
    assert (state["#MEMBERS"], state["STATE"]) == ("2", "Stable")
    rows = table(tool(bootstrap, "--describe", "--group", group, "--members", "--verbose"))
    assert {row["CLIENT-ID"] for row in rows} == {"one", "two"} and {row["#PARTITIONS"] for row in rows} == {"3"}
    assert {row["GROUP-INSTANCE-ID"] for row in rows} == {"first", "second"}, rows
    assert {row["CURRENT-EPOCH"] for row in rows} == {row["TARGET-EPOCH"] for row in rows}, rows
    refused = tool(bootstrap, "--delete", "--group", group)
    assert any("NOT" in word.upper() for line in refused for word in line), refused
    members.close()
    static_member_is_gone(bootstrap, group)
    deleted = tool(bootstrap, "--delete", "--group", group)
    assert "successful." in deleted[-1] or "successful" in " ".join(deleted[-1]), deleted
    assert not [line for line in tool(bootstrap, "--list") if line[0] == group]


def static_member_is_gone(bootstrap: str, group: str) -> None:
    """A static member that closed is in the group until its session ends."""
    deadline = time.monotonic() + TIMEOUT_S
    while [line for line in tool(bootstrap, "--list", "--state") if line[0] == group and line[-1] != "Empty"]:
        assert time.monotonic() < deadline
