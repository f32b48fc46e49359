"""Where dead letters go: KIP-1191's conditions, in Kafka's order, and `source % partitions`."""

from __future__ import annotations

import pytest

from kshare_core.configs import Configs
from kshare_core.configs.process import PROCESS_CONFIGS
from kshare_core.identifiers import TopicPartition
from kshare_leader.dead_letters.destination import (
    Destination,
    Refused,
    ToBeCreated,
    Unreachable,
    find_destination,
    find_destination_in_cluster,
)
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from support.leader.log.leader_logs import topic, view_of

ENABLED = {"errors.deadletterqueue.group.enable": "true"}
AUTO_CREATE = {"errors.deadletterqueue.auto.create.topics.enable": "true"}
DEAD_LETTERS = b"dlq.orders.00000"
NAME = DEAD_LETTERS.decode()
LEADERS = tuple(
    coordinator_pb2.Node(role=coordinator_pb2.ROLE_LEADER, node_id=node_id, rpc_address=f"leader-{node_id}:1")
    for node_id in (1, 2)
)


def view(*topics: coordinator_pb2.Topic, nodes: tuple[coordinator_pb2.Node, ...] = LEADERS) -> CatalogView:
    made = view_of(*topics)
    return CatalogView(version=1, topics_by_id=made.topics_by_id, topics_by_name=made.topics_by_name, nodes=nodes)


def find(
    catalog: CatalogView, topic_name: str = NAME, *, broker: dict[str, str] | None = None, source_partition: int = 0
) -> object:
    configs = Configs(PROCESS_CONFIGS, broker or {})
    return find_destination(catalog, configs, group_id="g", topic_name=topic_name, source_partition=source_partition)


@pytest.mark.parametrize(("source_partition", "partition", "leader"), [(0, 0, 1), (1, 1, 2), (2, 2, 1), (7, 1, 2)])
def test_the_partition_is_the_sources_modulo_the_topics(source_partition: int, partition: int, leader: int) -> None:
    catalog = view(topic(DEAD_LETTERS, leaders=(1, 2, 1), configs={**ENABLED, "max.message.bytes": "5000"}))
    expected = Destination(TopicPartition(DEAD_LETTERS, partition), f"leader-{leader}:1", 5000)
    assert find(catalog, source_partition=source_partition) == expected


WITHOUT = topic(DEAD_LETTERS)
WRONG = topic(b"wrong.prefix.000", configs=ENABLED)
INTERNAL = topic(b"__internal.00000", configs=ENABLED)


@pytest.mark.parametrize(
    ("catalog", "name", "broker", "reason"),
    [
        (view(), "", AUTO_CREATE, "no longer has errors.deadletterqueue.topic.name"),
        (view(INTERNAL), "__internal.00000", AUTO_CREATE, "must not start with __"),
        (view(WITHOUT), NAME, AUTO_CREATE, "does not have errors.deadletterqueue.group.enable=true"),
        (view(), NAME, {}, "does not exist"),
        (view(), "other", AUTO_CREATE, "must start with 'dlq.'"),
        (view(WRONG), "wrong.prefix.000", {}, "must start with 'dlq.'"),
    ],
)
def test_what_configs_forbid_is_refused(catalog: CatalogView, name: str, broker: dict[str, str], reason: str) -> None:
    found = find(catalog, name, broker=broker)
    assert isinstance(found, Refused) and reason in found.reason, found


def test_a_missing_topic_may_be_created_with_the_right_prefix() -> None:
    assert find(view(), broker=AUTO_CREATE) == ToBeCreated(NAME)
    assert find(view(), "x", broker={**AUTO_CREATE, "errors.deadletterqueue.topic.name.prefix": ""}) == ToBeCreated("x")


def test_without_a_leader_it_is_unreachable() -> None:
    catalog = view(topic(DEAD_LETTERS, leaders=(3,), configs=ENABLED))
    assert isinstance(find(catalog), Unreachable)


@pytest.mark.parametrize(
    ("configs", "is_refused"), [({}, False), (ENABLED, False), ({"errors.deadletterqueue.group.enable": "false"}, True)]
)
def test_a_topic_of_an_existing_cluster_may_be_used_unless_it_is_disabled(
    configs: dict[str, str], is_refused: bool
) -> None:
    found = find_destination_in_cluster(
        view(topic(DEAD_LETTERS, leaders=(3, 3), configs=configs)),
        Configs(PROCESS_CONFIGS, {}),
        group_id="g",
        topic_name=NAME,
        source_partition=3,
        max_message_bytes=7000,
    )
    if is_refused:
        assert isinstance(found, Refused)
    else:
        assert found == Destination(TopicPartition(DEAD_LETTERS, 1), "", 7000, NAME)
