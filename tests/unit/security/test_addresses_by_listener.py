"""The addresses that gateways have for a client's own listener are given to it; so are gateways with one listener."""

from __future__ import annotations

import pytest

from kshare_coordinator.machine import commands
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_core.internal_topics import CONSUMER_OFFSETS_TOPIC
from kshare_gateway.catalog.internal_topics import internal_topic_broker, topic_named
from kshare_gateway.gateway import ClientBrokers
from kshare_gateway.handlers.admin import describe_cluster, describe_log_dirs, describe_topic_partitions
from kshare_gateway.handlers.admin.metadata import handle as metadata
from kshare_gateway.handlers.groups import find_coordinator as finding
from kshare_gateway.request_context import RequestContext
from kshare_gateway.share.requests import LeaderHints
from kshare_rpc.catalog import CatalogView, client_endpoint
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_wire.generated.requests.describe_cluster import DescribeClusterRequest
from kshare_wire.generated.requests.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from kshare_wire.generated.requests.find_coordinator import FindCoordinatorRequest
from kshare_wire.generated.requests.metadata import MetadataRequest, MetadataRequestTopic
from support.coordinator.driver import CoordinatorDriver
from support.gateway.harness import GatewayHarness, run, topic

Listener = pb.Node.Listener
TOPIC_ID = bytes([5] * 16)


def gateway(node_id: int, *listeners: str, host: str = "h") -> pb.Node:
    """Listener n of a gateway has port 1000 n + its node id."""
    return pb.Node(
        role=pb.ROLE_GATEWAY,
        node_id=node_id,
        incarnation="one",
        advertised_host=host,
        advertised_port=1000 + node_id,
        listeners=[
            Listener(name=name, security_protocol="SSL", host=host, port=1000 * number + node_id)
            for number, name in enumerate(listeners, 1)
        ],
    )


def test_the_endpoints_of_a_gateway() -> None:
    old, new = gateway(1), gateway(2, "PLAINTEXT", "SSL")
    assert client_endpoint(old, "PLAINTEXT") == ("h", 1001) and client_endpoint(old, "SSL") is None
    assert client_endpoint(new, "SSL") == ("h", 2002) and client_endpoint(new, "OTHER") is None
    assert client_endpoint(gateway(3, "SSL"), "PLAINTEXT") is None
    view = CatalogView(nodes=(new, old))
    assert [node.node_id for node in view.gateways()] == [node.node_id for node in view.gateways("PLAINTEXT")] == [1, 2]
    assert [node.node_id for node in view.gateways("SSL")] == [2] and view.gateways("OTHER") == []


def test_partitions_are_spread_over_the_gateways_that_the_client_can_reach() -> None:
    leaders = tuple(pb.Node(role=pb.ROLE_LEADER, node_id=number, rpc_address="l") for number in (1, 2))
    view = CatalogView(nodes=(*leaders, gateway(1), gateway(2, "PLAINTEXT", "SSL"), gateway(3, "SSL")))
    wide = topic("wide", TOPIC_ID, [1, 2] * 20)
    for listener, reachable in (("PLAINTEXT", {1, 2}), ("SSL", {2, 3}), ("OTHER", {-1})):
        assert {ClientBrokers(view, listener).broker(wide, index) for index in range(40)} == reachable
        internal = {internal_topic_broker(view, wide, index, listener) for index in range(40)}
        assert internal == reachable


def context(harness: GatewayHarness, listener: str, version: int) -> RequestContext:
    gateway_of_node = harness.node._gateway
    return RequestContext(gateway_of_node, harness.node._share_fetcher, 1, "/h", "client", version, listener)


@pytest.mark.parametrize(("listener", "known"), [("PLAINTEXT", {7: 9092, 8: 1008}), ("SSL", {8: 2008, 9: 1009})])
def test_every_answer_with_addresses(listener: str, known: dict[int, int]) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.extra_gateways = [gateway(8, "PLAINTEXT", "SSL"), gateway(9, "SSL")]
        harness.catalog.topics["wide"] = topic("wide", TOPIC_ID, [1, 2] * 20)
        await harness.node._catalog.wait_for_version(harness.catalog.change(), timeout_ms=1000)
        asked = MetadataRequest(topics=[MetadataRequestTopic(name="wide")])
        answer = await metadata(context(harness, listener, 12), asked)
        assert {broker.node_id: broker.port for broker in answer.brokers} == known
        assert answer.controller_id == min(known)
        told = {part.leader_id for each in answer.topics for part in each.partitions}
        assert told - {-1} == set(known)
        cluster = await describe_cluster.handle(context(harness, listener, 1), DescribeClusterRequest())
        assert {broker.broker_id: broker.port for broker in cluster.brokers} == known
        hints = LeaderHints(context(harness, listener, 2))
        leader = hints.current_leader(TopicPartition(TOPIC_ID, 0), ErrorCode.NOT_LEADER_OR_FOLLOWER).leader_id
        assert {node.node_id: node.port for node in hints.node_endpoints()} == {leader: known[leader]}
        pages = await describe_topic_partitions.handle(
            context(harness, listener, 0), DescribeTopicPartitionsRequest(topics=[TopicRequest(name="wide")])
        )
        assert {part.leader_id for part in pages.topics[0].partitions} == set(known)
        found = await finding.handle(context(harness, listener, 2), FindCoordinatorRequest(key="group"))
        if 7 in known:
            assert (found.node_id, found.port) == (7, 9092)
        else:
            assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        wide = harness.node._gateway.view.topics_by_name["wide"]
        here = [describe_log_dirs._is_told_here(context(harness, listener, 1), wide, index) for index in range(40)]
        assert any(here) == (7 in known)
        assert topic_named(harness.node._gateway, CONSUMER_OFFSETS_TOPIC) is not None

    run(scenario)


@pytest.mark.parametrize(
    "listeners",
    [
        [Listener(name="", host="h", port=1)],
        [Listener(name="SSL", host="", port=1)],
        [Listener(name="SSL", host="h", port=0)],
        [Listener(name="SSL", host="h", port=65_536)],
        [Listener(name="SSL", host="h", port=1), Listener(name="SSL", host="h", port=2)],
    ],
)
def test_the_coordinator_refuses_unusable_listeners(listeners: list[Listener]) -> None:
    driver, node = CoordinatorDriver(), gateway(1)
    node.listeners.extend(listeners)
    with pytest.raises(KafkaError) as refusal:
        driver.run(commands.RegisterNode(request=pb.RegisterNodeRequest(node=node)))
    assert refusal.value.code is ErrorCode.INVALID_REQUEST and driver.state.nodes == {}
