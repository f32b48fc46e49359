"""MirrorTopics: the catalog takes over an existing cluster's topics, and nothing else changes them."""

from __future__ import annotations

from typing import Any

import pytest

from kshare_coordinator.machine import commands, records
from kshare_coordinator.machine.catalog.mirrored_topics import ids_that_end
from kshare_coordinator.machine.catalog.view import catalog_answer
from kshare_coordinator.machine.commands import Command, MirroredTopic
from kshare_core.configs import PROCESS_CONFIGS, Configs
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import ZERO_TOPIC_ID
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb
from support.coordinator.driver import CoordinatorDriver, assigned, creatable

KAFKA = {"kshare.engine": "kafka", "kshare.upstream.bootstrap.servers": "broker:9092"}
FIRST, SECOND, OTHER = b"1" * 16, b"2" * 16, b"o" * 16
GROUP_ENABLE = "errors.deadletterqueue.group.enable"


@pytest.fixture
def driver() -> CoordinatorDriver:
    made = CoordinatorDriver(KAFKA)
    made.register(pb.ROLE_LEADER, 1)
    made.register(pb.ROLE_SHARE_COORDINATOR, 1)
    return made


def mirror(
    driver: CoordinatorDriver, *topics: tuple[str, bytes, int], gone: tuple[str, ...] = (), cluster_id: str = "c"
) -> dict[str, str]:
    mirrored = tuple(MirroredTopic(name=name, topic_id=topic_id, partition_count=n) for name, topic_id, n in topics)
    return driver.run(commands.MirrorTopics(cluster_id=cluster_id, topics=mirrored, gone=gone))


def partition_count(driver: CoordinatorDriver, name: str) -> int:
    topic = driver.state.topic_named(name)
    return len(topic.placements) if topic else 0


def test_a_topic_keeps_its_id_grows_and_goes(driver: CoordinatorDriver) -> None:
    assert mirror(driver, ("orders", FIRST, 2)) == {}
    assert driver.state.topic_ids == {"orders": FIRST} and partition_count(driver, "orders") == 2
    version = driver.state.version
    mirror(driver, ("orders", FIRST, 2), ("orders", FIRST, 1))
    assert driver.record_count == 0 and driver.state.version == version, "nothing is new"
    mirror(driver, ("orders", FIRST, 3))
    topic = driver.state.topics[FIRST]
    assert [placement.partition for placement in topic.placements] == [0, 1, 2]
    assert {placement.leader_node_id for placement in topic.placements} == {1}
    mirror(driver, gone=("orders", "never-there"))
    assert driver.state.topics == {} and driver.state.topic_ids == {}
    assert driver.load().state == driver.state


def test_a_group_gets_partitions_of_mirrored_topics(driver: CoordinatorDriver) -> None:
    driver.heartbeat("m", 0, ["orders"])
    for count in (1, 2):
        mirror(driver, ("orders", FIRST, count))
        epoch = driver.state.share_groups["group"].members["m"].member_epoch
        epoch = driver.heartbeat("m", epoch).member_epoch
        driver.initialize_all()
        assert assigned(driver.heartbeat("m", epoch)) == {"orders": list(range(count))}


def test_another_id_is_another_topic_and_the_state_of_the_old_one_is_deleted(driver: CoordinatorDriver) -> None:
    driver.heartbeat("m", 0, ["orders"])
    mirror(driver, ("orders", FIRST, 2))
    epoch = driver.heartbeat("m", 2).member_epoch
    driver.initialize_all()
    mirror(driver, ("orders", SECOND, 1))
    driver.heartbeat("m", epoch)
    assert driver.state.topic_ids == {"orders": SECOND} and list(driver.state.topics) == [SECOND]
    partitions = driver.state.share_groups["group"].partitions
    assert list(partitions.deleting) == [FIRST]
    assert [entry.topic_id for entry in partitions.initializing] == [SECOND]
    assert driver.load().state == driver.state


def test_a_cluster_without_ids_keeps_the_invented_ones(driver: CoordinatorDriver) -> None:
    def without_id(topic_id: bytes, count: int) -> MirroredTopic:
        return MirroredTopic(name="orders", topic_id=topic_id, partition_count=count, has_own_id=False)

    driver.run(commands.MirrorTopics(cluster_id="c", topics=(without_id(FIRST, 1),)))
    driver.run(commands.MirrorTopics(cluster_id="c", topics=(without_id(SECOND, 2),)))
    assert driver.state.topic_ids == {"orders": FIRST} and partition_count(driver, "orders") == 2
    mirror(driver, gone=("orders",))
    driver.run(commands.MirrorTopics(cluster_id="c", topics=(without_id(SECOND, 2),)))
    assert driver.state.topic_ids == {"orders": SECOND}


def without_ids(driver: CoordinatorDriver, *names: str, count: int = 2) -> None:
    """A poll of a cluster without topic ids; each topic's fresh id is its name."""
    topics = [
        MirroredTopic(name=name, topic_id=name.encode().ljust(16), partition_count=count, has_own_id=False)
        for name in names
    ]
    driver.run(commands.MirrorTopics(cluster_id="c", topics=tuple(topics)))


def restart_with_older_records(driver: CoordinatorDriver) -> None:
    """The rows as versions wrote them that did not keep the cluster's id."""
    for topic in driver.state.topics.values():
        older = records_pb.TopicRecord()
        older.CopyFrom(topic)
        older.ClearField("upstream_topic_id")
        write = records.write_of(records.topic(older))
        assert write.value is not None
        driver.rows[write.key] = write.value
    driver.restart()


def ids_in_view(driver: CoordinatorDriver) -> dict[str, tuple[bytes, bytes]]:
    """The catalog's id of each topic, and that of the cluster where it is another one."""
    return {topic.name: (topic.topic_id, topic.upstream_topic_id) for topic in catalog_answer(driver.state, 0).topics}


@pytest.mark.parametrize("records_are_older", [False, True])
def test_states_are_kept_when_the_cluster_gives_its_topics_ids(records_are_older: bool) -> None:
    """Kafka 2.8 does so when inter.broker.protocol.version is raised."""
    driver = CoordinatorDriver(KAFKA)
    driver.register(pb.ROLE_LEADER, 1)
    driver.register(pb.ROLE_SHARE_COORDINATOR, 1)
    driver.heartbeat("m", 0, ["orders"])
    without_ids(driver, "orders")
    invented = b"orders".ljust(16)
    driver.heartbeat("m", 2)
    driver.initialize_all()
    assert ids_in_view(driver) == {"orders": (invented, ZERO_TOPIC_ID)}
    before = driver.state.share_groups["group"].partitions
    if records_are_older:
        restart_with_older_records(driver)
    mirror(driver, ("orders", FIRST, 2))
    assert ids_in_view(driver) == {"orders": (invented, FIRST)}
    assert driver.state.share_groups["group"].partitions == before
    mirror(driver, ("orders", FIRST, 2))
    without_ids(driver, "orders")
    assert driver.record_count == 0, "a broker that is behind shows no id"
    mirror(driver, ("orders", FIRST, 3))
    assert partition_count(driver, "orders") == 3 and driver.load().state == driver.state
    mirror(driver, ("orders", SECOND, 2))
    assert ids_in_view(driver) == {"orders": (SECOND, b"")}, "made again"
    assert list(driver.state.share_groups["group"].partitions.deleting) == [invented]


@pytest.mark.parametrize(
    "seen, expected",
    [
        ({"orders": SECOND, "other": OTHER}, {"orders": (SECOND, b""), "other": (OTHER, b"")}),
        ({"orders": SECOND}, {"orders": (FIRST, SECOND), "other": (OTHER, b"")}),
        ({"orders": FIRST}, {"orders": (FIRST, b""), "other": (OTHER, b"")}),
    ],
    ids=["the other topic proves that ids were not invented", "in doubt the state is kept", "the same"],
)
def test_older_records_do_not_tell_whether_an_id_was_invented(
    driver: CoordinatorDriver, seen: dict[str, bytes], expected: dict[str, tuple[bytes, bytes]]
) -> None:
    mirror(driver, ("orders", FIRST, 1), ("other", OTHER, 1))
    restart_with_older_records(driver)
    mirror(driver, *((name, topic_id, 1) for name, topic_id in seen.items()))
    assert {name: ids_in_view(driver)[name] for name in expected if name in seen} == {
        name: expected[name] for name in seen
    }


def test_a_topic_that_is_seen_later_than_the_proof_is_another_one(driver: CoordinatorDriver) -> None:
    """It was made again while the coordinator was upgraded, and is missing in the first poll."""
    mirror(driver, ("orders", FIRST, 1), ("other", OTHER, 1))
    restart_with_older_records(driver)
    mirror(driver, ("other", OTHER, 1))
    made_again = MirroredTopic(name="orders", topic_id=SECOND, partition_count=1)
    assert ids_that_end(driver.load().state, [made_again], []) == [FIRST]
    mirror(driver, ("orders", SECOND, 1))
    assert ids_in_view(driver)["orders"] == (SECOND, b"")


def test_older_records_get_the_id_with_the_first_poll_also_in_a_full_catalog(driver: CoordinatorDriver) -> None:
    mirror(driver, ("orders", FIRST, 2))
    driver.configs = Configs(PROCESS_CONFIGS, {**KAFKA, "kshare.max.partitions": "1"})
    restart_with_older_records(driver)
    assert mirror(driver, ("orders", FIRST, 2)) == {}
    assert list(mirror(driver, ("orders", SECOND, 2))) == ["orders"]
    assert driver.state.topic_ids == {}, "another topic, for which there is no room"


def test_topics_of_another_cluster_are_refused(driver: CoordinatorDriver) -> None:
    mirror(driver, ("orders", FIRST, 1), cluster_id="one")
    with pytest.raises(KafkaError, match="belong to cluster two, and the groups here to cluster one") as refused:
        mirror(driver, gone=("orders",), cluster_id="two")
    assert refused.value.code == ErrorCode.INVALID_REQUEST
    assert driver.state.topic_ids == {"orders": FIRST}
    mirror(driver, ("orders", FIRST, 2), cluster_id="")
    assert partition_count(driver, "orders") == 2, "a cluster that does not tell its id"


def test_a_topic_for_which_there_is_no_room_is_told() -> None:
    driver = CoordinatorDriver({**KAFKA, "kshare.max.partitions": "3"})
    refused = mirror(driver, ("large", FIRST, 4), ("small", SECOND, 3))
    assert list(refused) == ["large"] and "kshare.max.partitions leaves room for 3" in refused["large"]
    assert driver.state.topic_ids == {"small": SECOND}
    refused = mirror(driver, ("small", FIRST, 3), gone=())
    assert refused == {} and driver.state.topic_ids == {"small": FIRST}, "the old one makes room"


@pytest.mark.parametrize(
    "command",
    [
        commands.CreateTopics(request=pb.CreateTopicsRequest(topics=[creatable("orders", 1)]), topic_ids=(FIRST,)),
        commands.DeleteTopics(request=pb.DeleteTopicsRequest()),
        commands.CreatePartitions(request=pb.CreatePartitionsRequest()),
    ],
    ids=["create", "delete", "grow"],
)
def test_nothing_but_the_cluster_changes_topics(driver: CoordinatorDriver, command: Command[Any]) -> None:
    with pytest.raises(KafkaError, match="in the Kafka cluster at broker:9092") as refused:
        driver.run(command)
    assert refused.value.code == ErrorCode.POLICY_VIOLATION


def test_of_a_topics_configs_only_those_that_no_kafka_knows_are_kept_here(driver: CoordinatorDriver) -> None:
    mirror(driver, ("dlq.letters", FIRST, 1))

    def alter(name: str, value: str) -> int:
        change = pb.IncrementalAlterConfigsRequest.AlterableConfig(name=name, value=value)
        resource = pb.IncrementalAlterConfigsRequest.Resource(
            resource_type=2, resource_name="dlq.letters", configs=[change]
        )
        request = pb.IncrementalAlterConfigsRequest(resources=[resource])
        return driver.run(commands.IncrementalAlterConfigs(request=request)).results[0].error_code

    assert alter("retention.ms", "1000") == ErrorCode.POLICY_VIOLATION
    assert alter(GROUP_ENABLE, "true") == ErrorCode.NONE
    mirror(driver, ("dlq.letters", FIRST, 2))
    assert [(entry.name, entry.value) for entry in driver.state.topics[FIRST].configs] == [(GROUP_ENABLE, "true")]
