"""The ports of mode proxy: brokers that get none, and brokers that are fenced."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping

import pytest

from kshare_core.configs import process_configs
from kshare_gateway.connections.listeners import PLAINTEXT, GatewayListener
from kshare_gateway.upstream.ports import BrokerPorts, ClosePort
from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.responses.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from support.gateway.harness import GatewayClient, GatewayHarness
from support.upstream.scripted_broker import NODE_ID, ScriptedBroker

RANGE = "kshare.upstream.proxy.port.range"
FENCED, UNKNOWN = 77, 78
REQUESTS = 50
Scenario = Callable[[GatewayHarness, ScriptedBroker], Awaitable[None]]


def run(scenario: Scenario, texts: Mapping[str, str] | None = None) -> None:
    async def whole() -> None:
        async with ScriptedBroker() as broker:
            broker.served[ApiKey.DESCRIBE_CLUSTER] = VersionRange(0, 2)
            configs = {
                "kshare.engine": "kafka",
                "kshare.upstream.mode": "proxy",
                "kshare.upstream.bootstrap.servers": broker.address,
                **(texts or {}),
            }
            address = BrokerAddress("127.0.0.1", broker.port)
            async with GatewayHarness(
                configs,
                client_listen="127.0.0.1:0",
                open_upstream=lambda: Cluster([address], ClientSettings()),
            ) as harness:
                await asyncio.wait_for(scenario(harness, broker), 20)

    asyncio.run(whole())


async def look_again(client: GatewayClient) -> None:
    """The gateway asks for the cluster's brokers, as it does every two seconds."""
    assert client.connection.relay is not None
    await client.connection.relay.front.brokers.look_again()


def test_a_broker_without_a_port_is_looked_for_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

        async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
            client = harness.client()
            asked = len(broker.received(ApiKey.API_VERSIONS))
            answers = await asyncio.gather(
                *(client.ask(ApiKey.METADATA, 12, topics=[]) for _ in range(REQUESTS)),
                *(harness.client().ask(ApiKey.METADATA, 12, topics=[]) for _ in range(REQUESTS)),
            )
            assert not any(answer.brokers for answer in answers)
            assert len(broker.received(ApiKey.API_VERSIONS)) - asked < REQUESTS / 5, "once in two seconds"
            (problem,) = [each for each in harness.node.cluster_problems() if "no port" in each]
            assert f"brokers {NODE_ID} of the existing cluster" in problem and f"{port}-{port} of {RANGE}" in problem
            assert not harness.node.problems(), "it can serve what it has"
            assert [record.getMessage() for record in caplog.records].count(problem) == 1
            taken.close()
            await look_again(client)
            told = await client.ask(ApiKey.METADATA, 12, topics=[])
            assert [(each.node_id, each.port) for each in told.brokers] == [(NODE_ID, port)]
            assert not any("no port" in each for each in harness.node.cluster_problems())

        with caplog.at_level(logging.ERROR):
            run(scenario, {RANGE: f"{port}-{port}"})


def test_fenced_brokers_are_described_with_their_own_addresses() -> None:
    """Kafka 4.0 shows them to requests that include them (KIP-1073)."""

    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        described = [
            DescribeClusterBroker(broker_id=NODE_ID, host="127.0.0.1", port=broker.port),
            DescribeClusterBroker(broker_id=FENCED, host="fenced.example", port=9092, rack="r2", is_fenced=True),
        ]
        broker.answers[ApiKey.DESCRIBE_CLUSTER] = lambda version, frame: DescribeClusterResponse(brokers=described)
        client, metadata = harness.client(), broker.answers[ApiKey.METADATA]
        broker.answers[ApiKey.METADATA] = lambda version, frame: None  # they are not looked for, which would wait
        answer = await client.ask(ApiKey.DESCRIBE_CLUSTER, 2, include_fenced_brokers=True)
        found = {each.broker_id: (each.host, each.rack, each.is_fenced) for each in answer.brokers}
        assert found == {NODE_ID: ("gateway.example", None, False), FENCED: ("fenced.example", "r2", True)}
        (of_live,) = [each.port for each in answer.brokers if each.broker_id == NODE_ID]
        broker.answers[ApiKey.METADATA] = metadata
        described[0].is_fenced = True
        described[1] = DescribeClusterBroker(broker_id=UNKNOWN, host="new.example", port=9092)
        answer = await client.ask(ApiKey.DESCRIBE_CLUSTER, 2, include_fenced_brokers=True)
        found = {each.broker_id: (each.host, each.port, each.is_fenced) for each in answer.brokers}
        assert found == {NODE_ID: ("gateway.example", of_live, True)}, "a live one without a port is not reachable here"

    run(scenario)


@pytest.mark.parametrize("is_start", [True, False])
def test_a_port_that_this_process_cannot_open(is_start: bool) -> None:
    """At the start it ends the process, as a listener does; later the other brokers stay, and it is tried again."""
    failure = OSError(errno.EMFILE, "Too many open files")
    failures = {2: failure, **({1: failure} if is_start else {})}

    async def close() -> None:
        pass

    async def open_port(listener: GatewayListener, port: int, broker_id: int) -> tuple[int, ClosePort]:
        if broker_id in failures:
            raise failures[broker_id]
        return 20_000 + broker_id, close

    async def scenario() -> None:
        listener = GatewayListener(
            name="PLAINTEXT",
            security_protocol=PLAINTEXT,
            host="127.0.0.1",
            port=0,
            advertised_host="gateway.example",
            advertised_port=0,
        )
        ports = BrokerPorts(process_configs({})[0], [listener], open_port)
        if is_start:
            with pytest.raises(OSError, match="Too many open files"):
                await ports.cover([1, 2])
            return
        await ports.cover([1, 2])
        (problem,) = ports.problems()
        assert "brokers 2 of" in problem and "Too many open files" in problem
        failures.clear()
        await ports.cover([1, 2])
        assert not ports.problems() and ports.ports() == {("PLAINTEXT", 1): 20_001, ("PLAINTEXT", 2): 20_002}

    asyncio.run(scenario())


def test_a_port_that_cannot_be_opened_after_a_start_without_ports_is_tried_again() -> None:
    """A start without ports: no broker was in the range, or its port was in use."""
    failures: list[OSError] = [OSError(errno.EMFILE, "Too many open files")]

    async def close() -> None:
        pass

    async def open_port(listener: GatewayListener, port: int, broker_id: int) -> tuple[int, ClosePort]:
        if failures:
            raise failures.pop()
        return 20_000 + broker_id, close

    async def scenario() -> None:
        listener = GatewayListener(
            name="PLAINTEXT",
            security_protocol=PLAINTEXT,
            host="127.0.0.1",
            port=0,
            advertised_host="gateway.example",
            advertised_port=0,
        )
        ports = BrokerPorts(process_configs({})[0], [listener], open_port)
        await ports.cover([])
        await ports.cover([1])
        assert "Too many open files" in ports.problems()[0]
        await ports.cover([1])
        assert not ports.problems()

    asyncio.run(scenario())
