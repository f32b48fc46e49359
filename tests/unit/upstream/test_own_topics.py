"""The topics that kshare makes for itself in an existing cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kshare_coordinator.metadata.upstream.topic import ensure_topic
from kshare_core.configs import InvalidConfig, process_configs
from kshare_core.errors import StorageFailure
from kshare_servicekit.existing_cluster import create_state_topic_in
from kshare_upstream.own_topics import (
    METADATA_PARTITIONS,
    OwnTopic,
    WrongTopic,
    create_own_topics,
    metadata_topic,
    state_topic,
)
from kshare_upstream.topics import DEFAULT_REPLICAS, Replicas
from support.coordinator.cluster import run_virtually
from support.upstream.topics_upstream import TopicsUpstream

CONFIGS, _ = process_configs(
    {
        "kshare.engine": "kafka",
        "kshare.upstream.bootstrap.servers": "memory:9092",
        "share.coordinator.state.topic.num.partitions": "7",
    }
)


def create(upstream: TopicsUpstream, topics: Sequence[OwnTopic], replicas: Replicas = DEFAULT_REPLICAS) -> list[str]:
    """The names of the created topics; nothing is warned of."""
    warnings: list[str] = []
    created = asyncio.run(create_own_topics(upstream, topics, replicas, warnings.append))
    assert warnings == []
    return created


@pytest.mark.parametrize(
    ("brokers", "wanted", "replicas"),
    [
        (3, DEFAULT_REPLICAS, 3),
        (5, DEFAULT_REPLICAS, 3),
        (5, Replicas(4, is_configured=True), 4),
        (3, Replicas(1, is_configured=True), 1),
    ],
)
def test_what_is_missing_is_made_with_the_wanted_replicas(brokers: int, wanted: Replicas, replicas: int) -> None:
    upstream = TopicsUpstream(brokers=brokers)
    topics = [state_topic("__a_", 50), metadata_topic("__a_")]
    assert create(upstream, topics, wanted) == ["__a_state", "__a_metadata"]
    assert [each.num_partitions for each in upstream.created] == [50, METADATA_PARTITIONS]
    for topic in upstream.created:
        assert topic.replication_factor == replicas
        configs = {config.name: config.value for config in topic.configs}
        assert configs["cleanup.policy"] == "delete" and configs["retention.ms"] == "-1"
    assert create(upstream, topics, wanted) == []


@pytest.mark.parametrize("brokers", [1, 2])
def test_a_first_start_while_brokers_are_missing_warns_of_too_few_replicas(brokers: int) -> None:
    """Metadata shows live brokers only; a topic keeps its replicas when the others start."""
    upstream = TopicsUpstream(brokers=brokers)
    problems: list[str] = []
    asyncio.run(create_state_topic_in(lambda: upstream, CONFIGS, problems.append))
    assert [each.replication_factor for each in upstream.created] == [brokers]
    (problem,) = problems
    assert problem.startswith(f"replication factor {brokers} instead of 3 for __kshare_state, because ")
    assert "Set kshare.upstream.topic.replication.factor before the first start" in problem


def test_a_configured_replication_factor_waits_for_the_brokers() -> None:
    upstream, configs = TopicsUpstream(brokers=1), CONFIGS.texts()
    three, _ = process_configs({**configs, "kshare.upstream.topic.replication.factor": "3"})
    problems: list[str] = []

    def told(problem: str) -> None:
        problems.append(problem)
        others = TopicsUpstream(brokers=3).brokers
        asyncio.get_running_loop().call_later(60, upstream.brokers.update, others)

    run_virtually(lambda: create_state_topic_in(lambda: upstream, three, told))
    assert problems == [
        "topic __kshare_state cannot be created yet: CreateTopics of __kshare_state with a replication factor of 3: "
        "INVALID_REPLICATION_FACTOR (start the missing brokers, or set kshare.upstream.topic.replication.factor to the "
        "number of brokers)"
    ]
    assert [each.replication_factor for each in upstream.created] == [3]


def test_a_topic_with_other_partitions_is_refused() -> None:
    upstream = TopicsUpstream()
    upstream.put("__kshare_state", 8)
    with pytest.raises(InvalidConfig, match=r"set share\.coordinator\.state\.topic\.num\.partitions=8"):
        asyncio.run(create_state_topic_in(lambda: upstream, CONFIGS, print))
    assert upstream.is_closed
    upstream.put("__kshare_metadata", 1)
    with pytest.raises(WrongTopic, match="has 1 partitions, and kshare needs 2; use another"):
        create(upstream, [metadata_topic("__kshare_")])


@pytest.mark.parametrize(
    ("config", "value"), [("cleanup.policy", "compact"), ("retention.ms", "604800000"), ("retention.bytes", "1000000")]
)
def test_a_topic_from_which_the_cluster_would_remove_rows_is_refused(config: str, value: str) -> None:
    upstream = TopicsUpstream()
    topics = [state_topic("__kshare_", 7), metadata_topic("__kshare_")]
    create(upstream, topics)
    upstream.configs_of_topics["__kshare_state"][config] = value
    wanted = "delete" if config == "cleanup.policy" else "-1"
    command = (
        "kafka-configs.sh --bootstrap-server memory:9092 --alter --entity-type topics --entity-name __kshare_state "
        f"--add-config {config}={wanted}"
    )
    with pytest.raises(InvalidConfig, match=rf"topic __kshare_state has {config}={value}: .*; {command}$"):
        asyncio.run(create_state_topic_in(lambda: upstream, CONFIGS, print))
    upstream.refuses_configs = True
    asyncio.run(create_state_topic_in(lambda: upstream, CONFIGS, print))
    upstream.configs_of_topics["__kshare_metadata"][config] = value
    upstream.refuses_configs = False
    with pytest.raises(StorageFailure, match=f"topic __kshare_metadata has {config}={value}"):
        asyncio.run(ensure_topic(upstream, metadata_topic("__kshare_"), DEFAULT_REPLICAS))


def test_a_topic_that_would_refuse_large_batches_is_refused() -> None:
    upstream = TopicsUpstream()
    topics = [state_topic("__kshare_", 7), metadata_topic("__kshare_")]
    create(upstream, topics)
    configs = upstream.configs_of_topics["__kshare_state"]
    for value in (1_048_588, 1_000_000):
        configs["max.message.bytes"] = str(value)
        create(upstream, topics)
    configs["max.message.bytes"] = "999999"
    with pytest.raises(
        WrongTopic,
        match=r"^topic __kshare_state has max\.message\.bytes=999999: .* up to 1000000 bytes; kafka-configs\.sh ",
    ) as refused:
        create(upstream, topics)
    assert str(refused.value).endswith("--entity-name __kshare_state --add-config max.message.bytes=1048588")


def test_a_share_coordinator_waits_for_the_cluster_and_says_so_once() -> None:
    upstream = TopicsUpstream()
    upstream.brokers[1].is_reachable = False
    problems = []

    def told(problem: str) -> None:
        problems.append(problem)
        asyncio.get_running_loop().call_later(60, setattr, upstream.brokers[1], "is_reachable", True)

    run_virtually(lambda: create_state_topic_in(lambda: upstream, CONFIGS, told))
    assert problems == ["topic __kshare_state cannot be created yet: broker 1 is away"]
    assert [(each.name, each.num_partitions) for each in upstream.created] == [("__kshare_state", 7)]
    assert upstream.is_closed
