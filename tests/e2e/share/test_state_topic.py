"""`__share_group_state` as clients see it, keys 83 to 87 on the Kafka port, and `kshare state dump`.

What a consumer reads from the topic, replayed, must be what ReadShareGroupState says; Kafka's own tools must understand
both. The requests for 83 to 87 also go to Apache Kafka 4.3.1, which must answer the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from kshare.addresses import parse_address
from kshare.commands.state.group_state import Run, SharePartitionState, read_group_state
from kshare.kafka_connection import KafkaConnection, read_metadata
from kshare_core.identifiers import SharePartitionKey, parse_topic_id, state_partition_of
from kshare_wire.generated.requests.find_coordinator import FindCoordinatorRequest
from kshare_wire.generated.responses.find_coordinator import Coordinator
from support.clients.delivery import (
    ACCEPT,
    REJECT,
    RELEASE,
    SETTINGS,
    Reader,
    new_group,
    new_topic,
    produce,
    running_system,
    wait_for,
)
from support.clusters.kshare_cluster import KshareCluster
from support.kafka.java_programs import run_tool
from support.share_coordinator.state_topic import replayed
from support.wire.typed_messages import ALL_REQUESTS, message_of

STATE_TOPIC = "__share_group_state"
STATE_PARTITIONS = 50
FORMATTER = "org.apache.kafka.tools.consumer.group.share.ShareGroupStateMessageFormatter"
TIMEOUT_S = 30.0
NONE, NOT_COORDINATOR, FENCED_LEADER_EPOCH, FENCED_STATE_EPOCH = 0, 16, 74, 124


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KshareCluster]:
    with KshareCluster(tmp_path_factory.mktemp("kshare"), SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def group(cluster: KshareCluster) -> tuple[str, str]:
    """A topic, and a group that has done something with its 20 records."""
    bootstrap, records_bootstrap = cluster.bootstrap, cluster.records_bootstrap
    topic, group = new_topic(records_bootstrap, 2), new_group(bootstrap)
    produce(records_bootstrap, topic, map(str, range(20)))
    with Reader(bootstrap, group, topic) as reader:
        messages = reader.take()
        assert len(messages) == 20
        reader.settle(ACCEPT, messages[3:9])
        reader.settle(REJECT, messages[12:14])
        reader.settle(RELEASE, [*messages[:3], *messages[9:12], *messages[14:]])
    return topic, group


RUNS = [Run(0, 2, 0, 1), Run(3, 8, 2, 1), Run(9, 11, 0, 1), Run(12, 13, 4, 1), Run(14, 19, 0, 1)]


def read_whole_topic(bootstrap: str) -> list[tuple[int, bytes, bytes | None]]:
    """Partition, key and value of everything that a plain consumer finds."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(STATE_TOPIC, index, offset=0) for index in range(STATE_PARTITIONS)])
        found: list[tuple[int, bytes, bytes | None]] = []
        positions: dict[int, int] = {}
        ended: dict[int, None] = {}
        while len(ended) < STATE_PARTITIONS:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"only {len(ended)} partitions came to their end"
            partition, error = message.partition(), message.error()
            assert partition is not None
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended[partition] = None
                continue
            offset, key = message.offset(), message.key()
            assert offset is not None and offset > positions.get(partition, -1) and isinstance(key, bytes)
            positions[partition] = offset
            found.append((partition, key, message.value()))
        for partition, offset in positions.items():
            _, end_offset = consumer.get_watermark_offsets(TopicPartition(STATE_TOPIC, partition), TIMEOUT_S)
            assert end_offset == offset + 1
        return found
    finally:
        consumer.close()


def test_a_plain_consumer_reads_what_the_state_is(cluster: KshareCluster, group: tuple[str, str]) -> None:
    states = {state.key: state for state in read_group_state(cluster.bootstrap, group[1], None)}
    found = read_whole_topic(cluster.bootstrap)
    for key, state in replayed((record[1], record[2]) for record in found).items():
        if key.group_id == group[1]:
            known = states.pop(key)
            assert [Run(*batch) for batch in state.state_batches] == list(known.runs)
            assert (state.state_epoch, state.leader_epoch) == (known.state_epoch, known.leader_epoch)
            assert (state.start_offset, state.delivery_complete_count) == (
                known.start_offset,
                known.delivery_complete_count,
            )
            places = {partition for partition, record_key, _ in found if str(key.group_id).encode() in record_key}
            assert state_partition_of(key, STATE_PARTITIONS) in places
    assert states == {}


def printed_by_the_formatter(printed: str) -> list[dict[str, Any]]:
    """Kafka's formatter writes one JSON object after the other, and no line ends between them."""
    decoder = json.JSONDecoder()
    records: list[dict[str, Any]] = []
    while (at := printed.find("{")) >= 0:
        record, end = decoder.raw_decode(printed[at:])
        records.append(record)
        printed = printed[at + end :]
    return records


@pytest.mark.timeout(240)
def test_kafkas_console_consumer_prints_the_snapshot(cluster: KshareCluster, group: tuple[str, str]) -> None:
    state = state_of(cluster.bootstrap, group)
    printed = run_tool(
        cluster.bootstrap,
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--topic", STATE_TOPIC, "--partition", str(state_partition_of(state.key, STATE_PARTITIONS))),
        *("--offset", "earliest", "--timeout-ms", "6000", "--formatter", FORMATTER),
    )
    (snapshot,) = [
        record["value"]["data"]
        for record in printed_by_the_formatter(printed)
        if record["key"]["type"] == 0
        and record["key"]["data"]["groupId"] == state.key.group_id
        and parse_topic_id(record["key"]["data"]["topicId"]) == state.key.topic_id
        and record["key"]["data"]["partition"] == 0
    ]
    assert snapshot["stateEpoch"] == state.state_epoch
    assert snapshot["leaderEpoch"] == state.leader_epoch
    assert snapshot["startOffset"] == 0
    assert snapshot["deliveryCompleteCount"] == 8
    batches = [
        Run(batch["firstOffset"], batch["lastOffset"], batch["deliveryState"], batch["deliveryCount"])
        for batch in snapshot["stateBatches"]
    ]
    assert batches == RUNS


@pytest.mark.timeout(240)
def test_kafkas_tools_list_it_as_internal(cluster: KshareCluster, group: tuple[str, str]) -> None:
    topics = "org.apache.kafka.tools.TopicCommand"
    assert STATE_TOPIC in run_tool(cluster.bootstrap, topics, "--list").split()
    without = run_tool(cluster.bootstrap, topics, "--list", "--exclude-internal").split()
    assert STATE_TOPIC not in without and group[0] in without
    described = run_tool(cluster.bootstrap, topics, "--describe", "--topic", STATE_TOPIC)
    assert f"PartitionCount: {STATE_PARTITIONS}" in described
    assert "cleanup.policy=delete" in described and "retention.ms=-1" in described
    offsets = run_tool(cluster.bootstrap, "org.apache.kafka.tools.GetOffsetShell", "--topic", STATE_TOPIC)
    assert sum(int(line.split(":")[2]) for line in offsets.split()) > 0


def test_clients_change_nothing_of_it(cluster: KshareCluster, group: tuple[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic(STATE_TOPIC, 1)])[STATE_TOPIC].result(TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    with pytest.raises(KafkaException) as refused:
        admin.delete_topics([STATE_TOPIC])[STATE_TOPIC].result(TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError.INVALID_REQUEST
    codes: list[int] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(
        STATE_TOPIC, b"mine", on_delivery=lambda error, message: codes.append(error.code() if error else 0)
    )
    assert producer.flush(TIMEOUT_S) == 0
    assert codes == [KafkaError.TOPIC_EXCEPTION]
    configs = admin.describe_configs([ConfigResource("topic", STATE_TOPIC)])
    (found,) = [future.result(TIMEOUT_S) for future in configs.values()]
    assert {name: found[name].value for name in ("cleanup.policy", "retention.ms", "segment.bytes")} == {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "segment.bytes": "104857600",
    }


def test_a_consumer_waits_for_the_next_record(cluster: KshareCluster) -> None:
    """A fetch at the end is answered when something is written, long before its wait ends."""
    bootstrap = cluster.bootstrap
    topic, group = new_topic(cluster.records_bootstrap), new_group(bootstrap)
    key = SharePartitionKey(group, topic_id(bootstrap, topic), 0)
    place = state_partition_of(key, STATE_PARTITIONS)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "waiter", "fetch.wait.max.ms": 30_000})
    try:
        _, end_offset = consumer.get_watermark_offsets(TopicPartition(STATE_TOPIC, place), TIMEOUT_S)
        consumer.assign([TopicPartition(STATE_TOPIC, place, offset=end_offset)])
        assert consumer.poll(0.5) is None
        assert ask(bootstrap, 83, 0, group, key, state_epoch=1, start_offset=5)["error_code"] == NONE
        message = consumer.poll(10)
        assert message is not None and message.error() is None and message.offset() == end_offset
    finally:
        consumer.close()


def topic_id(bootstrap: str, topic: str) -> bytes:
    address = parse_address(bootstrap, what="bootstrap")
    found: dict[str | None, bytes] = {}

    def is_there() -> bool:
        found.update({each.name: each.topic_id for each in read_metadata(address).topics})
        return topic in found

    wait_for(is_there, f"topic {topic} is there")
    return found[topic]


def state_of(bootstrap: str, group: tuple[str, str], partition: int = 0) -> SharePartitionState:
    (state,) = [state for state in read_group_state(bootstrap, group[1], group[0]) if state.key.partition == partition]
    return state


def coordinator_of(bootstrap: str, key: SharePartitionKey) -> Coordinator:
    find = FindCoordinatorRequest(key_type=2, coordinator_keys=[str(key)])
    with KafkaConnection(parse_address(bootstrap, what="bootstrap")) as connection:
        (found,) = connection.call(find, 6).coordinators
    return found


def ask(
    bootstrap: str, api_key: int, version: int, group: str, key: SharePartitionKey, **fields: Any
) -> dict[str, Any]:
    """The result for one share-partition, from the node that FindCoordinator says."""
    found = coordinator_of(bootstrap, key)
    assert found.error_code == NONE and found.key == str(key)
    partition = {"partition": key.partition, **fields}
    topics = [{"topic_id": key.topic_id, "partitions": [partition]}]
    request = message_of(ALL_REQUESTS[api_key], {"group_id": group, "topics": topics})
    with KafkaConnection(parse_address(f"{found.host}:{found.port}", what="coordinator")) as connection:
        (topic,) = connection.call(request, version).results
    assert topic.topic_id == key.topic_id
    (result,) = topic.partitions
    assert result.partition == key.partition
    return {name: getattr(result, name) for name in result.__slots__}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["kshare", "kafka"])
def test_the_state_apis_in_turn(kind: str, tmp_path: Path) -> None:
    with running_system(kind, tmp_path) as system:
        bootstrap = system.bootstrap
        group = f"direct-{uuid.uuid4().hex[:8]}"
        key = SharePartitionKey(group, topic_id(bootstrap, new_topic(system.records_bootstrap)), 0)
        batches = [
            {"first_offset": 100, "last_offset": 109, "delivery_state": 2, "delivery_count": 1},
            {"first_offset": 112, "last_offset": 112, "delivery_state": 0, "delivery_count": 3},
        ]

        # Kafka makes its topic only now, and a partition of it is led a moment later.
        wait_for(lambda: coordinator_of(bootstrap, key).error_code == NONE, "somebody has the state")
        wait_for(
            lambda: ask(bootstrap, 83, 0, group, key, state_epoch=3, start_offset=100)["error_code"] == NONE,
            "the share-partition is initialized",
        )
        assert ask(bootstrap, 84, 0, group, key, leader_epoch=7)["error_code"] == NONE  # as the leader does
        written = ask(
            bootstrap,
            *(85, 1, group, key),
            state_epoch=3,
            leader_epoch=7,
            start_offset=100,
            delivery_complete_count=10,
            state_batches=batches,
        )
        assert written["error_code"] == NONE

        read = ask(bootstrap, 84, 0, group, key, leader_epoch=-1)
        assert (read["error_code"], read["state_epoch"], read["start_offset"]) == (NONE, 3, 100)
        assert [
            (batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
            for batch in read["state_batches"]
        ] == [tuple(batch.values()) for batch in batches]

        summary = ask(bootstrap, 87, 1, group, key, leader_epoch=-1)
        assert (summary["state_epoch"], summary["leader_epoch"], summary["start_offset"]) == (3, 7, 100)
        assert (summary["error_code"], summary["delivery_complete_count"]) == (NONE, 10)

        assert ask(bootstrap, 84, 0, group, key, leader_epoch=6)["error_code"] == FENCED_LEADER_EPOCH
        late = {"leader_epoch": 7, "start_offset": -1, "state_batches": []}
        assert ask(bootstrap, 85, 0, group, key, state_epoch=2, **late)["error_code"] == FENCED_STATE_EPOCH
        late["leader_epoch"] = 6
        assert ask(bootstrap, 85, 0, group, key, state_epoch=3, **late)["error_code"] == FENCED_LEADER_EPOCH
        assert ask(bootstrap, 83, 0, group, key, state_epoch=2, start_offset=0)["error_code"] == FENCED_STATE_EPOCH

        assert ask(bootstrap, 86, 0, group, key)["error_code"] == NONE
        gone = ask(bootstrap, 87, 0, group, key, leader_epoch=-1)
        assert (gone["error_code"], gone["state_epoch"], gone["start_offset"]) == (NONE, 0, -1)


@pytest.mark.timeout(120)
def test_without_a_share_coordinator_state_partitions_have_no_owner(tmp_path: Path) -> None:
    """As long as the killed process is away, then the state is there again."""
    with KshareCluster(tmp_path, SETTINGS) as cluster:
        _initialize_kill_and_read(cluster)


@pytest.mark.timeout(120)
def test_the_topic_has_its_records_after_a_share_coordinator_was_killed(tmp_path: Path) -> None:
    with KshareCluster(tmp_path, SETTINGS) as cluster:
        key = _initialize_kill_and_read(cluster)
        records = [(record_key, value) for _, record_key, value in read_whole_topic(cluster.bootstrap)]
        assert replayed(records)[key].start_offset == 100


def _initialize_kill_and_read(cluster: KshareCluster) -> SharePartitionKey:
    """A share-partition with start offset 100, which was read after the share coordinator was killed."""
    bootstrap, group = cluster.bootstrap, "direct"
    key = SharePartitionKey(group, topic_id(bootstrap, new_topic(cluster.records_bootstrap)), 0)
    # In front of an existing cluster a share coordinator claims its state partitions in the first moments.
    wait_for(
        lambda: ask(bootstrap, 83, 0, group, key, state_epoch=3, start_offset=100)["error_code"] == NONE,
        "the share-partition is initialized",
    )
    cluster.wait_until_gone(cluster.kill_role("share_coordinator"))
    codes: dict[int, None] = {}
    while NONE not in codes:
        read = ask(bootstrap, 84, 0, group, key, leader_epoch=-1)
        codes[int(read["error_code"])] = None
    assert codes.keys() <= {NONE, 14, 15, NOT_COORDINATOR}
    assert read["start_offset"] == 100
    return key


def dumped(cluster: KshareCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "kshare"), "state", "dump", *arguments]
    command += ["--bootstrap-server", cluster.bootstrap]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_dump_explains_a_group(cluster: KshareCluster, group: tuple[str, str]) -> None:
    topic, group_id = group
    result = dumped(cluster, group_id, "--topic", topic)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    state = state_of(cluster.bootstrap, group)
    assert lines[0] == (
        f"{topic}-0  start 0  end 19  lag 12  complete 8  "
        f"state epoch {state.state_epoch}  leader epoch {state.leader_epoch}"
    )
    assert lines[1] == "  20 offsets from 0 to 19: 12 available (delivered once), 6 acknowledged, 2 archived"
    assert lines[2] == "  |111######111xx111111|"
    assert lines[3] == "  1 0-2: available, delivered once"
    assert "x  archived" in lines


def test_the_dump_as_json(cluster: KshareCluster, group: tuple[str, str]) -> None:
    topic, group_id = group
    found = json.loads(dumped(cluster, group_id, "--json").stdout)
    assert found["group"] == group_id
    assert [(each["topic"], each["partition"]) for each in found["share_partitions"]] == [(topic, 0), (topic, 1)]
    assert [
        (run["first_offset"], run["last_offset"], run["state"]) for run in found["share_partitions"][0]["runs"]
    ] == [
        (0, 2, "available"),
        (3, 8, "acknowledged"),
        (9, 11, "available"),
        (12, 13, "archived"),
        (14, 19, "available"),
    ]


def test_the_dump_of_a_group_that_is_not_there(cluster: KshareCluster) -> None:
    result = dumped(cluster, "nobody")
    assert result.returncode == 1
    assert result.stderr == "kshare: group nobody has no share-partitions, so no state is stored\n"
