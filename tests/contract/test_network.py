"""The contract of Network, for gRPC and for one process alike."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop
from google.protobuf.message import Message

from kshare_core.configs import process_configs
from kshare_fastpath.prompt_future import PromptFuture
from kshare_rpc.exchange.tls import ExchangeTls
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_rpc.generated.methods import (
    DELETE_RECORDS,
    FETCH,
    LIST_GROUPS,
    LIST_OFFSETS,
    PRODUCE,
    RELEASE_SHARE_SESSION,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
)
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_rpc.network import CallFailed, CallTimeout, Channel, ChannelUnavailable, Handler, Network, Server, Service
from kshare_servicekit.tls.between_roles import exchange_tls
from support.environment.certificates import Authority
from support.environment.machine_stalls import MachineStalls

TIMEOUT_MS = 10_000
ADDRESS = "127.0.0.1:0"
REQUEST = leader_pb2.ShareAcknowledgeRequest(owner=leader_pb2.ShareSessionOwner(group_id="g"))


class Leader:
    """Handlers whose behaviour a test decides while they run."""

    def __init__(self, *, is_prompt: bool = False) -> None:
        """`is_prompt`: the handlers are plain functions that return Futures."""
        self._is_prompt = is_prompt
        self.begun: list[int] = []
        self.entered = asyncio.Event()
        self.go_on = asyncio.Event()
        self.finished = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.errors: list[tuple[str, BaseException]] = []

    def service(self) -> Service:
        handlers: dict[Any, Handler] = {
            PRODUCE: self.produce,
            SHARE_FETCH: self.share_fetch,
            SHARE_ACKNOWLEDGE: self.share_acknowledge,
            RELEASE_SHARE_SESSION: self.release_share_session,
        }
        if self._is_prompt:
            handlers = {method: _plain(handler) for method, handler in handlers.items()}
        return Service("Leader", {**handlers, FETCH: self.first, DELETE_RECORDS: self.second})

    async def first(self, request: leader_pb2.FetchRequest, _: memoryview) -> Message:
        """Notes the order in which calls begin."""
        self.begun.append(request.max_bytes)
        return leader_pb2.FetchResponse()

    def second(self, request: leader_pb2.DeleteRecordsRequest, _: memoryview) -> asyncio.Future[Message]:
        """As `first`, without a coroutine."""
        (partition,) = request.partitions
        if partition.offset < 0:
            raise ValueError("no such offset")
        self.begun.append(partition.offset)
        answer: asyncio.Future[Message] = PromptFuture(loop=asyncio.get_running_loop())
        answer.set_result(leader_pb2.DeleteRecordsResponse())
        return answer

    async def produce(
        self, request: leader_pb2.ProduceRequest, payload: memoryview
    ) -> tuple[Message, list[bytes | memoryview]]:
        """Gives the payload back in pieces as long as the request says."""
        pieces: list[bytes | memoryview] = []
        at = 0
        for partition in request.partitions:
            pieces.append(payload[at : at + partition.records_length])
            at += partition.records_length
        assert at == len(payload)
        return leader_pb2.ProduceResponse(), pieces

    async def share_fetch(self, request: leader_pb2.ShareFetchRequest, _: memoryview) -> Message:
        """Waits until the test lets it go on."""
        self.entered.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        self.finished.set()
        return leader_pb2.ShareFetchResponse(acquisition_lock_timeout_ms=request.max_wait_ms)

    async def share_acknowledge(self, request: leader_pb2.ShareAcknowledgeRequest, payload: memoryview) -> Message:
        assert len(payload) == 0
        return leader_pb2.ShareAcknowledgeResponse(acquisition_lock_timeout_ms=len(request.owner.group_id))

    async def release_share_session(self, request: leader_pb2.ReleaseShareSessionRequest, _: memoryview) -> Message:
        raise RuntimeError(f"no such group {request.owner.group_id}")

    def on_handler_error(self, path: str, error: BaseException) -> None:
        self.errors.append((path, error))


def _plain(handler: Handler) -> Handler:
    def begin(request: Any, payload: memoryview) -> asyncio.Future[Any]:
        return asyncio.ensure_future(handler(request, payload))

    return begin


Scene = Callable[[Network, Leader, Server, Channel], Awaitable[None]]
Play = Callable[[Scene], None]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ExchangeTls:
    folder, authority = tmp_path_factory.mktemp("tls"), Authority("roles")
    texts = {
        "kshare.rpc.ssl.keystore.location": str(authority.issue("role").write_combined(folder / "role.pem")),
        "kshare.rpc.ssl.truststore.location": str(authority.write(folder / "ca.pem")),
    }
    found = exchange_tls(process_configs(texts)[0])
    assert found is not None
    return found


@pytest.fixture(
    params=[
        *("grpc", "grpc over TCP", "grpc on uvloop", "grpc with TLS", "grpc with TLS on uvloop", "in process"),
        *("grpc on uvloop, prompt", "grpc with TLS, prompt", "in process, prompt"),
    ]
)
def play(request: pytest.FixtureRequest, tls: ExchangeTls) -> Play:
    """Runs a scene with a network, a served leader and a channel to it."""

    async def run(scene: Scene) -> None:
        leader = Leader(is_prompt="prompt" in request.param)
        network: Network
        if "grpc" in request.param:
            used = tls if "TLS" in request.param else None
            is_local = "TCP" not in request.param
            network = GrpcNetwork(on_handler_error=leader.on_handler_error, tls=used, local_sockets=is_local)
        else:
            network = InProcessNetwork(on_handler_error=leader.on_handler_error)
        server = await network.serve(ADDRESS, [leader.service()])
        channel = network.connect(server.address)
        try:
            await asyncio.wait_for(scene(network, leader, server, channel), 30)
        finally:
            await channel.close()
            await server.stop(0)

    def played(scene: Scene) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if "uvloop" in request.param else None) as runner:
            runner.run(run(scene))

    return played


async def acknowledge(channel: Channel) -> int:
    answer, payload = await channel.call(SHARE_ACKNOWLEDGE, REQUEST, timeout_ms=TIMEOUT_MS)
    assert len(payload) == 0
    return answer.acquisition_lock_timeout_ms


async def acknowledge_when_reachable(channel: Channel) -> int:
    """As a role does: again and again until somebody is there."""
    while True:
        try:
            return await acknowledge(channel)
        except ChannelUnavailable:
            await asyncio.sleep(0.01)


def test_messages_and_payloads_go_both_ways(play: Play) -> None:
    async def scene(network: Network, leader: Leader, server: Server, channel: Channel) -> None:
        for lengths in ([], [0], [5], [1, 300_000, 2], [3_000_000]):
            pieces: list[bytes | memoryview] = [memoryview(bytes([index]) * n) for index, n in enumerate(lengths)]
            partitions = [leader_pb2.ProduceRequest.Partition(records_length=length) for length in lengths]
            request = leader_pb2.ProduceRequest(partitions=partitions)
            answer, payload = await channel.call(PRODUCE, request, pieces, timeout_ms=TIMEOUT_MS)
            assert isinstance(answer, leader_pb2.ProduceResponse)
            assert payload == b"".join(pieces)

    play(scene)


def test_many_calls_at_once_get_their_own_answers(play: Play) -> None:
    async def scene(network: Network, leader: Leader, server: Server, channel: Channel) -> None:
        leader.go_on.set()
        requests = [leader_pb2.ShareFetchRequest(max_wait_ms=index) for index in range(500)]
        calls = [channel.call(SHARE_FETCH, request, timeout_ms=TIMEOUT_MS) for request in requests]
        answers = await asyncio.gather(*calls)
        assert [answer.acquisition_lock_timeout_ms for answer, _ in answers] == list(range(500))

    play(scene)


def test_a_slow_call_keeps_no_other_waiting(play: Play) -> None:
    async def scene(network: Network, leader: Leader, server: Server, channel: Channel) -> None:
        request = leader_pb2.ShareFetchRequest(max_wait_ms=7)
        slow = asyncio.ensure_future(channel.call(SHARE_FETCH, request, timeout_ms=TIMEOUT_MS))
        await leader.entered.wait()
        assert await acknowledge(channel) == 1
        assert not slow.done()
        leader.go_on.set()
        assert (await slow)[0].acquisition_lock_timeout_ms == 7

    play(scene)


def test_an_exception_of_a_handler_fails_its_call_only(play: Play) -> None:
    async def scene(network: Network, leader: Leader, server: Server, channel: Channel) -> None:
        request = leader_pb2.ReleaseShareSessionRequest(owner=leader_pb2.ShareSessionOwner(group_id="orders"))
        for _ in range(2):
            with pytest.raises(CallFailed, match="RuntimeError: no such group orders") as caught:
                await channel.call(RELEASE_SHARE_SESSION, request, timeout_ms=TIMEOUT_MS)
            assert not isinstance(caught.value, ChannelUnavailable)
        assert [(path, str(error)) for path, error in leader.errors] == [
            ("Leader/ReleaseShareSession", "no such group orders")
        ] * 2
        assert await acknowledge(channel) == 1

    play(scene)


def delete_records(channel: Channel, offset: int) -> Awaitable[Any]:
    request = leader_pb2.DeleteRecordsRequest()
    request.partitions.add(offset=offset)
    return channel.call(DELETE_RECORDS, request, timeout_ms=TIMEOUT_MS)


def test_calls_begin_in_the_order_in_which_they_were_made(play: Play) -> None:
    """Whether their handlers are coroutines or not."""

    async def scene(network: Network, leader: Leader, server: Server, channel: Channel) -> None:
        await acknowledge(channel)
        calls: list[Awaitable[Any]] = []
        for number in range(20):
            if number % 3:
                calls.append(delete_records(channel, number))
            else:
                request = leader_pb2.FetchRequest(max_bytes=number)
                calls.append(channel.call(FETCH, request, timeout_ms=TIMEOUT_MS))
        await asyncio.gather(*calls)
        assert leader.begun == list(range(20))

    play(scene)


def test_a_prompt_handler_that_raises_fails_its_call_only(play: Play) -> None:
    async def scene(network: Network, leader: Leader, server: Server, channel: Channel) -> None:
        with pytest.raises(CallFailed, match="ValueError: no such offset") as caught:
            await delete_records(channel, -1)
        assert not isinstance(caught.value, ChannelUnavailable)
        assert [(path, str(error)) for path, error in leader.errors] == [("Leader/DeleteRecords", "no such offset")]
        await delete_records(channel, 7)
        assert leader.begun == [7]

    play(scene)


def test_a_method_that_is_not_served(play: Play) -> None:
    async def scene(network: Network, leader: Leader, server: Server, channel: Channel) -> None:
        with pytest.raises(CallFailed, match="no method 'Leader/ListOffsets'") as caught:
            await channel.call(LIST_OFFSETS, leader_pb2.ListOffsetsRequest(), timeout_ms=TIMEOUT_MS)
        assert not isinstance(caught.value, ChannelUnavailable)
        assert await acknowledge(channel) == 1

    play(scene)


def test_a_service_that_is_not_served(play: Play) -> None:
    async def scene(network: Network, leader: Leader, server: Server, channel: Channel) -> None:
        for _ in range(2):
            with pytest.raises(CallFailed, match="no method 'Coordinator/ListGroups'") as caught:
                await channel.call(LIST_GROUPS, coordinator_pb2.ListGroupsRequest(), timeout_ms=TIMEOUT_MS)
            assert not isinstance(caught.value, ChannelUnavailable)
        assert await acknowledge(channel) == 1

    play(scene)


def test_a_call_that_timed_out_runs_to_its_end(play: Play) -> None:
    async def scene(network: Network, leader: Leader, server: Server, channel: Channel) -> None:
        await acknowledge(channel)
        with pytest.raises(CallTimeout, match="did not respond within 50 ms"):
            await channel.call(SHARE_FETCH, leader_pb2.ShareFetchRequest(), timeout_ms=50)
        await leader.entered.wait()
        leader.go_on.set()
        await leader.finished.wait()
        assert await acknowledge(channel) == 1

    play(scene)


def test_a_cancelled_call_does_not_affect_other_calls(play: Play) -> None:
    async def scene(network: Network, leader: Leader, server: Server, channel: Channel) -> None:
        request = leader_pb2.ShareFetchRequest()
        callers = [asyncio.ensure_future(channel.call(SHARE_FETCH, request, timeout_ms=TIMEOUT_MS)) for _ in range(3)]
        await leader.entered.wait()
        callers[1].cancel()
        assert await acknowledge(channel) == 1
        leader.go_on.set()
        await callers[0]
        await callers[2]
        with pytest.raises(asyncio.CancelledError):
            await callers[1]
        assert not leader.cancelled.is_set()

    play(scene)


def test_no_server_at_the_address(play: Play) -> None:
    async def scene(network: Network, leader: Leader, server: Server, channel: Channel) -> None:
        other = network.connect("127.0.0.1:1")
        for _ in range(2):
            with pytest.raises(ChannelUnavailable, match=r"127\.0\.0\.1:1"):
                await acknowledge(other)
        await other.close()

    play(scene)


def test_an_address_has_one_server(play: Play) -> None:
    async def scene(network: Network, leader: Leader, server: Server, channel: Channel) -> None:
        with pytest.raises(OSError, match=f"cannot listen on '{server.address}'"):
            await network.serve(server.address, [leader.service()])
        other = await network.serve(ADDRESS, [leader.service()])
        assert other.address != server.address
        assert int(other.address.rpartition(":")[2]) > 0
        await other.stop(0)

    play(scene)


def test_a_stopping_server_finishes_what_is_under_way_and_refuses_the_rest(play: Play) -> None:
    async def scene(network: Network, leader: Leader, server: Server, channel: Channel) -> None:
        under_way = asyncio.ensure_future(
            channel.call(SHARE_FETCH, leader_pb2.ShareFetchRequest(max_wait_ms=3), timeout_ms=TIMEOUT_MS)
        )
        await leader.entered.wait()
        stop = asyncio.ensure_future(server.stop(TIMEOUT_MS))
        await asyncio.sleep(0)
        with pytest.raises(ChannelUnavailable, match="is stopping"):
            await acknowledge(channel)
        assert not stop.done()
        leader.go_on.set()
        assert (await under_way)[0].acquisition_lock_timeout_ms == 3
        await stop
        with pytest.raises(ChannelUnavailable):
            await acknowledge(channel)

    play(scene)


def test_after_the_grace_what_is_under_way_is_cancelled(play: Play) -> None:
    async def scene(network: Network, leader: Leader, server: Server, channel: Channel) -> None:
        under_way = asyncio.ensure_future(
            channel.call(SHARE_FETCH, leader_pb2.ShareFetchRequest(), timeout_ms=TIMEOUT_MS)
        )
        await leader.entered.wait()
        await server.stop(20)
        assert leader.cancelled.is_set()
        with pytest.raises(ChannelUnavailable, match="stopped before it could answer"):
            await under_way
        assert leader.errors == []

    play(scene)


def test_a_channel_finds_a_server_that_came_back(play: Play) -> None:
    async def scene(network: Network, leader: Leader, server: Server, channel: Channel) -> None:
        assert await acknowledge(channel) == 1
        await server.stop(0)
        with pytest.raises(ChannelUnavailable):
            await acknowledge(channel)
        again = await network.serve(server.address, [leader.service()])
        with MachineStalls() as stalls:
            started_at, began = asyncio.get_running_loop().time(), time.monotonic()
            assert await acknowledge_when_reachable(channel) == 1
            took_s = asyncio.get_running_loop().time() - started_at
            assert took_s < 2 + stalls.credit_s(began, time.monotonic(), 2)
        await again.stop(0)

    play(scene)


def test_calls_that_may_overtake_each_other_have_other_numbers_of_lost_streams() -> None:
    """In one process no stream is ever lost."""

    async def scene() -> None:
        leader, network = Leader(), GrpcNetwork()
        server = await network.serve(ADDRESS, [leader.service()])
        channel = network.connect(server.address)
        assert await acknowledge(channel) == 1
        under_way = asyncio.ensure_future(
            channel.call(SHARE_FETCH, leader_pb2.ShareFetchRequest(), timeout_ms=TIMEOUT_MS)
        )
        await leader.entered.wait()
        before = channel.streams_lost
        await server.stop(0)
        with pytest.raises(ChannelUnavailable):
            await under_way
        with pytest.raises(ChannelUnavailable):
            await acknowledge(channel)  # nobody listens
        again = await network.serve(server.address, [leader.service()])
        assert await acknowledge_when_reachable(channel) == 1
        after = channel.streams_lost
        assert after > before
        assert await acknowledge(channel) == 1
        assert channel.streams_lost == after
        await channel.close()
        await again.stop(0)

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_a_closed_channel(play: Play) -> None:
    async def scene(network: Network, leader: Leader, server: Server, channel: Channel) -> None:
        under_way = asyncio.ensure_future(
            channel.call(SHARE_FETCH, leader_pb2.ShareFetchRequest(), timeout_ms=TIMEOUT_MS)
        )
        await leader.entered.wait()
        await channel.close()
        with pytest.raises(ChannelUnavailable, match="closed"):
            await under_way
        with pytest.raises(ChannelUnavailable, match="is closed"):
            await acknowledge(channel)

    play(scene)
