"""The ports of mode proxy: which one a broker has, brokers that get none, and brokers that are fenced."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping

import pytest

from kshare_core.configs import InvalidConfig, process_configs
from kshare_gateway.connections.listeners import PLAINTEXT, GatewayListener
from kshare_gateway.upstream.ports import BrokerPorts, ClosePort
from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.responses.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from support.environment.free_ports import free_port
from support.gateway.harness import GatewayClient, GatewayHarness
from support.upstream.scripted_broker import NODE_ID, ScriptedBroker

RANGE = "kshare.upstream.proxy.port.range"
FENCED, UNKNOWN = 77, 78
REQUESTS = 50
Scenario = Callable[[GatewayHarness, ScriptedBroker], Awaitable[None]]


class CountedId(int):
    """A broker id that counts the remainders that are taken of all of them."""

    remainders = 0

    def __mod__(self, width: int) -> int:
        CountedId.remainders += 1
        return int(self) % width


def listening(port: int, name: str = "PLAINTEXT", host: str = "127.0.0.1") -> GatewayListener:
    return GatewayListener(
        name=name,
        security_protocol=PLAINTEXT,
        host=host,
        port=port,
        advertised_host="gateway.example",
        advertised_port=0,
    )


def gateway_ports(texts: Mapping[str, str], *listeners: GatewayListener) -> BrokerPorts:
    """The ports of a gateway on a machine where all ports are free."""

    async def close() -> None:
        pass

    async def open_port(listener: GatewayListener, port: int, broker_id: int) -> tuple[int, ClosePort]:
        return port, close

    return BrokerPorts(process_configs(texts)[0], listeners, open_port)


def test_gateways_behind_one_address_have_the_same_port_for_a_broker() -> None:
    """Whichever brokers were there when each of them started: a client told by one may reach the other."""

    async def scenario() -> None:
        first, second = (gateway_ports({RANGE: "30093-30095"}, listening(9092)) for _ in range(2))
        await first.cover([1001, 1002, 1003])
        await second.cover([1002, 1003])
        await second.cover([1001, 1002, 1003])
        expected = {("PLAINTEXT", 1001): 30095, ("PLAINTEXT", 1002): 30093, ("PLAINTEXT", 1003): 30094}
        assert first.ports() == second.ports() == expected
        assert not first.problems() and not second.problems()

    asyncio.run(scenario())


def test_of_live_brokers_with_the_same_port_the_lowest_id_has_it() -> None:
    async def scenario() -> None:
        first, second = (gateway_ports({RANGE: "30093-30095"}, listening(9092)) for _ in range(2))
        await first.cover([1, 4])
        await second.cover([4])
        assert second.ports() == {("PLAINTEXT", 4): 30094} and not second.problems(), "the only one with this port"
        await second.cover([1, 4])
        assert first.ports() == second.ports() == {("PLAINTEXT", 1): 30094}
        assert second.endpoint("PLAINTEXT", 4) is None, "clients of the second would be led to broker 1 by the first"
        (problem,) = second.problems()
        assert "brokers 4 of the existing cluster have no port at listener PLAINTEXT" in problem
        assert "brokers 1 and 4 have the same port 30094" in problem
        assert f"the 3 ports of {RANGE}; set it to a range of 4 ports" in problem
        await second.cover([4])
        assert second.ports() == {("PLAINTEXT", 4): 30094} and not second.problems(), "broker 1 was replaced by 4"

    asyncio.run(scenario())


def test_a_port_that_is_another_brokers_now_is_closed_and_opened_again() -> None:
    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        relay = harness.client().connection.relay
        assert relay is not None
        ports = relay.front.ports
        assert ports is not None and ports.ports() == {("PLAINTEXT", NODE_ID): port}
        await ports.cover([NODE_ID - 1, NODE_ID])
        assert ports.ports() == {("PLAINTEXT", NODE_ID - 1): port}, "the range has one port only"
        await ports.cover([NODE_ID])
        assert ports.ports() == {("PLAINTEXT", NODE_ID): port} and not ports.problems()

    port = free_port()
    run(scenario, {RANGE: f"{port}-{port}"})


def test_listeners_share_a_range_in_equal_parts() -> None:
    async def scenario() -> None:
        listeners = (listening(9092), listening(9094, "EXTERNAL"))
        ports = gateway_ports({RANGE: "9100-9104"}, *listeners)
        await ports.cover([1, 2])
        assert ports.ports() == {
            ("PLAINTEXT", 1): 9101,
            ("PLAINTEXT", 2): 9100,
            ("EXTERNAL", 1): 9103,
            ("EXTERNAL", 2): 9102,
        }
        await ports.cover([1, 2, 3])
        assert f"the 2 ports for each listener of {RANGE}; set it to a range of 6 ports" in ports.problems()[0]
        with pytest.raises(InvalidConfig, match="has 1 ports for 2 listeners"):
            gateway_ports({RANGE: "9100-9100"}, *listeners)

    asyncio.run(scenario())


def test_the_ports_of_listeners_are_no_brokers() -> None:
    """They are bound, but do not listen yet: opened a second time, the gateway could not listen at them."""

    async def scenario() -> None:
        listeners = (listening(9092), listening(9093, "EXTERNAL"))
        ports = gateway_ports({}, *listeners)
        await ports.cover([1])
        assert ports.ports() == {("PLAINTEXT", 1): 9094, ("EXTERNAL", 1): 9095}
        with pytest.raises(InvalidConfig, match="9093-9112 has port 9093, where listener EXTERNAL itself listens"):
            gateway_ports({RANGE: "9093-9112"}, *listeners)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("first", "second", "is_refused"),
    [
        ("10.0.0.1", "127.0.0.1", False),
        ("127.0.0.1", "127.0.0.1", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("10.0.0.1", "0.0.0.0", True),
        ("", "127.0.0.1", True),
        ("::", "127.0.0.1", False),
        ("::", "::1", True),
        ("localhost", "127.0.0.1", True),
    ],
)
def test_the_port_of_a_listener_at_another_address_may_be_a_brokers(first: str, second: str, is_refused: bool) -> None:
    """In the other listener's part of the range; a name may have the address."""
    listeners = (listening(9092, "A", first), listening(19093, "B", second))
    if is_refused:
        with pytest.raises(InvalidConfig, match="19093-19119 has port 19093, where listener B itself listens"):
            gateway_ports({RANGE: "19093-19119"}, *listeners)
        return
    gateway_ports({RANGE: "19093-19119"}, *listeners)
    with pytest.raises(InvalidConfig, match="19080-19105 has port 19093, where listener B itself listens"):
        gateway_ports({RANGE: "19080-19105"}, *listeners)  # its own part begins with 19093


def test_the_number_of_ports_that_is_needed_is_computed_once_for_the_same_brokers() -> None:
    """It is on the event loop, every two seconds; 300 ids took 2.2 s, since each that collided had its own."""

    async def scenario() -> None:
        ids = [CountedId(number * number * 7919) for number in range(1, 101)]
        ports = gateway_ports({RANGE: "20000-20039"}, listening(9092), listening(9094, "EXTERNAL"))
        CountedId.remainders = 0
        await ports.cover(ids)
        assert len(ports.problems()) == 2
        assert CountedId.remainders < 1_000 * len(ids) / 2, "a thousand widths are tried once at the most"
        CountedId.remainders = 0
        await ports.cover(ids)
        assert CountedId.remainders < 12 * len(ids), "only the places of brokers at both listeners"
        assert "set it to a range of" in ports.problems()[0]
        await ports.cover([*ids[:2], CountedId(int(ids[0]) + 20)])
        assert "the same port 20019" in ports.problems()[0] and "a range of 42 ports" in ports.problems()[0]

    asyncio.run(scenario())


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
            assert f"brokers {NODE_ID} of the existing cluster" in problem and f"port {port} of {RANGE}" in problem
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
        ports = BrokerPorts(process_configs({})[0], [listening(0)], open_port)
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
        ports = BrokerPorts(process_configs({})[0], [listening(0)], open_port)
        await ports.cover([])
        await ports.cover([1])
        assert "Too many open files" in ports.problems()[0]
        await ports.cover([1])
        assert not ports.problems()

    asyncio.run(scenario())
