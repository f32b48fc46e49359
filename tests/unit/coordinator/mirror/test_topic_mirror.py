"""The mirror of an existing cluster's topics on virtual time: polls, look-ups, and when an absence is believed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kshare_coordinator.mirror.sightings import ABSENT_POLLS, REPLACED_FOR_MS
from kshare_core.delivery_history import HISTORY_TOPIC
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import topic_id_text
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.cluster import CoordinatorCluster, run_virtually
from support.upstream.topics_upstream import NO_CONTROLLER, TopicsUpstream

CONFIGS = {"kshare.engine": "kafka", "kshare.upstream.bootstrap.servers": "broker:9092"}
POLL_S = 1.0


@asynccontextmanager
async def running(upstream: TopicsUpstream, configs: dict[str, str] | None = None) -> AsyncIterator[CoordinatorCluster]:
    cluster = CoordinatorCluster(CONFIGS | (configs or {}), open_upstream=lambda: upstream)
    await cluster.start()
    await asyncio.sleep(POLL_S / 2)  # between two polls
    try:
        yield cluster
    finally:
        await cluster.node.stop(0)


def topic_ids(cluster: CoordinatorCluster) -> dict[str, bytes]:
    assert cluster.node.core is not None
    return dict(cluster.node.core.state.topic_ids)


def partition_count(cluster: CoordinatorCluster, name: str) -> int:
    assert cluster.node.core is not None
    topic = cluster.node.core.state.topic_named(name)
    return len(topic.placements) if topic else 0


async def look_up(cluster: CoordinatorCluster, *names: str) -> pb.LookUpTopicsResponse:
    return await cluster.call(methods.LOOK_UP_TOPICS, pb.LookUpTopicsRequest(topic_names=names))


async def polls(count: int) -> None:
    await asyncio.sleep(count * POLL_S)


def test_a_subscribed_topic_is_known_before_the_heartbeat_is_answered() -> None:
    async def main() -> None:
        upstream = TopicsUpstream()
        topic_id = upstream.put("orders", 3)
        async with running(upstream) as cluster:
            await cluster.heartbeat("m", 0, ["orders"])
            assert topic_ids(cluster) == {"orders": topic_id} and partition_count(cluster, "orders") == 3
            assert asyncio.get_running_loop().time() < POLL_S, "not only with the next poll"
        assert upstream.is_closed

    run_virtually(main)


@pytest.mark.parametrize("has_history", [False, True])
def test_only_what_groups_and_leaders_need_is_asked_for(has_history: bool) -> None:
    async def main() -> None:
        upstream = TopicsUpstream()
        upstream.put("orders", 1)
        upstream.put("unrelated", 1)
        async with running(upstream, {"kshare.delivery.history.enable": str(has_history).lower()}) as cluster:
            await cluster.heartbeat("m", 0, ["orders", "__kshare_state", "not a topic"])
            await polls(2)
            assert list(topic_ids(cluster)) == ["orders"]
            asked = {name for names in upstream.asked for name in names}
            assert asked == {"orders", *([HISTORY_TOPIC] if has_history else [])}

    run_virtually(main)


def test_a_topic_that_comes_grows_and_is_made_again() -> None:
    async def main() -> None:
        upstream = TopicsUpstream()
        async with running(upstream) as cluster:
            await cluster.heartbeat("m", 0, ["orders"])
            first = upstream.put("orders", 1)
            await polls(1)
            assert topic_ids(cluster) == {"orders": first}
            upstream.grow("orders", 4)
            await polls(1)
            assert topic_ids(cluster) == {"orders": first} and partition_count(cluster, "orders") == 4
            second = upstream.put("orders", 2)
            await polls(1)
            assert topic_ids(cluster) == {"orders": second} and partition_count(cluster, "orders") == 2
            upstream.put("orders", 1, topic_id=first)
            await polls(3)
            assert topic_ids(cluster) == {"orders": second}, "a broker that is behind"

    run_virtually(main)


def test_a_topic_that_is_gone_is_removed_after_some_polls() -> None:
    async def main() -> None:
        upstream = TopicsUpstream()
        async with running(upstream) as cluster:
            topic_id = upstream.put("orders", 1)
            await cluster.heartbeat("m", 0, ["orders"])
            del upstream.topics["orders"]
            await polls(ABSENT_POLLS - 1)
            for _ in range(5):
                await look_up(cluster, "another")
            assert topic_ids(cluster) == {"orders": topic_id}, "look-ups do not count"
            await polls(1)
            assert topic_ids(cluster) == {}
            upstream.put("orders", 1, topic_id=topic_id)
            await polls(3)
            assert topic_ids(cluster) == {}, "a broker that is behind still shows it"
            await asyncio.sleep(REPLACED_FOR_MS / 1000)
            await look_up(cluster, "orders")
            assert topic_ids(cluster) == {"orders": topic_id}

    run_virtually(main)


@pytest.mark.parametrize("doubt", ["one poll", "no controller", "one broker", "most brokers away", "unreachable"])
def test_an_absence_that_may_pass_removes_nothing(doubt: str) -> None:
    async def main() -> None:
        upstream = TopicsUpstream()
        async with running(upstream) as cluster:
            topic_id = upstream.put("orders", 1)
            await cluster.heartbeat("m", 0, ["orders"])
            known = dict(upstream.topics)
            if doubt == "one broker":
                upstream.brokers[1].own_view = {}
            elif doubt == "unreachable":
                upstream.brokers[1].is_reachable = False
            else:
                upstream.topics.clear()
            if doubt == "no controller":
                upstream.controller_id = NO_CONTROLLER
            elif doubt == "most brokers away":
                upstream.brokers[2].is_reachable = upstream.brokers[3].is_reachable = False
            await polls(1 if doubt == "one poll" else 3 * ABSENT_POLLS)
            assert topic_ids(cluster) == {"orders": topic_id}
            upstream.topics |= known
            upstream.brokers[1].own_view = None
            await polls(1)
            upstream.topics.clear()
            upstream.controller_id = 1
            await polls(ABSENT_POLLS - 1)
            assert topic_ids(cluster) == {"orders": topic_id}, "polls in a row count"

    run_virtually(main)


def test_a_cluster_that_is_away_is_a_problem_until_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        upstream = TopicsUpstream()
        async with running(upstream) as cluster:
            upstream.put("orders", 1)
            upstream.brokers[1].is_reachable = False
            await cluster.heartbeat("m", 0, ["orders"])
            await asyncio.sleep(40)
            (problem,) = cluster.node.problems()
            assert problem == "topics of the existing cluster are not known: broker 1 is away"
            warnings = [each for each in caplog.records if each.levelname == "WARNING"]
            assert len(warnings) == 2, "twice a minute"
            upstream.brokers[1].is_reachable = True
            await polls(1)
            assert cluster.node.problems() == [] and list(topic_ids(cluster)) == ["orders"]

    run_virtually(main)


def test_topics_that_cannot_be_used_are_problems() -> None:
    async def main() -> None:
        upstream = TopicsUpstream()
        async with running(upstream, {"kshare.max.partitions": "4"}) as cluster:
            upstream.put("large", 5)
            upstream.put("secret", 1)
            upstream.brokers[1].errors["secret"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            await cluster.heartbeat("m", 0, ["large", "secret"])
            await polls(1)
            large, secret = cluster.node.problems()
            assert large.startswith("topic large cannot be used: it would add 5 partitions")
            assert secret.startswith("topic secret cannot be used: ") and "Describe" in secret
            upstream.brokers[1].errors.clear()
            upstream.put("large", 3)
            await polls(1)
            assert cluster.node.problems() == [] and list(topic_ids(cluster)) == ["large", "secret"]

    run_virtually(main)


def test_topics_of_another_cluster_are_not_taken() -> None:
    async def main() -> None:
        upstream = TopicsUpstream()
        async with running(upstream) as cluster:
            topic_id = upstream.put("orders", 1)
            await cluster.heartbeat("m", 0, ["orders"])
            upstream.cluster_id = "second"
            upstream.topics.clear()
            await polls(ABSENT_POLLS + 1)
            (problem,) = cluster.node.problems()
            assert "belong to cluster second, and the groups here to cluster first" in problem
            assert topic_ids(cluster) == {"orders": topic_id}

    run_virtually(main)


def test_a_cluster_without_topic_ids_gets_invented_ones() -> None:
    async def main() -> None:
        upstream = TopicsUpstream(has_topic_ids=False)
        async with running(upstream) as cluster:
            upstream.put("orders", 1)
            await cluster.heartbeat("m", 0, ["orders"])
            (first,) = topic_ids(cluster).values()
            assert any(first)
            upstream.grow("orders", 2)
            await polls(1)
            assert topic_ids(cluster) == {"orders": first} and partition_count(cluster, "orders") == 2
            del upstream.topics["orders"]
            await polls(ABSENT_POLLS)
            upstream.put("orders", 1)
            await polls(1)
            (second,) = topic_ids(cluster).values()
            assert second != first

    run_virtually(main)


@pytest.mark.parametrize("mode", ["share", "proxy"])
def test_topics_stay_the_same_when_the_cluster_gets_ids(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        upstream = TopicsUpstream(has_topic_ids=False)
        async with running(upstream, {"kshare.upstream.mode": mode}) as cluster:
            upstream.put("orders", 1)
            await cluster.heartbeat("m", 0, ["orders"])
            (invented,) = topic_ids(cluster).values()
            upstream.has_topic_ids = True
            first = upstream.put("orders", 2)
            await polls(2)
            assert topic_ids(cluster) == {"orders": invented} and partition_count(cluster, "orders") == 2
            (text,) = [each.getMessage() for each in caplog.records if "has got the id" in each.getMessage()]
            assert topic_id_text(first) in text and ("kshare.upstream.mode=share" in text) == (mode == "proxy")
            second = upstream.put("orders", 1)
            await polls(1)
            assert topic_ids(cluster) == {"orders": second}
            upstream.put("orders", 2, topic_id=first)
            await polls(3)
            assert topic_ids(cluster) == {"orders": second}, "a broker that is behind"

    run_virtually(main)


def test_requests_that_name_a_topic_look_it_up() -> None:
    async def main() -> None:
        upstream = TopicsUpstream()
        for name in ("altered", "described", "dlq.letters", "asked"):
            upstream.put(name, 1)
        async with running(upstream) as cluster:
            answer = await look_up(cluster, "asked", "missing")
            assert answer.error_code == 0 and answer.version > 0 and list(topic_ids(cluster)) == ["asked"]
            topic = pb.AlterShareGroupOffsetsRequest.Topic(topic_name="altered")
            await cluster.call(
                methods.ALTER_SHARE_GROUP_OFFSETS, pb.AlterShareGroupOffsetsRequest(group_id="g", topics=[topic])
            )
            named = pb.NamedPartitions(topic_name="described", partitions=[0])
            await cluster.call(
                methods.DESCRIBE_SHARE_GROUP_OFFSETS, pb.DescribeShareGroupOffsetsRequest(group_id="g", topics=[named])
            )
            change = pb.IncrementalAlterConfigsRequest.AlterableConfig(
                name="errors.deadletterqueue.topic.name", value="dlq.letters"
            )
            resource = pb.IncrementalAlterConfigsRequest.Resource(resource_type=32, resource_name="g", configs=[change])
            await cluster.call(
                methods.INCREMENTAL_ALTER_CONFIGS, pb.IncrementalAlterConfigsRequest(resources=[resource])
            )
            assert set(topic_ids(cluster)) == {"altered", "described", "dlq.letters", "asked"}

    run_virtually(main)
