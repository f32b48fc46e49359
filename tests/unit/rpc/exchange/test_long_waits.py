"""Calls that wait for other members of a group leave room for all other calls, at the caller and at the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from google.protobuf.message import Message

from kshare_rpc import grpc_channel
from kshare_rpc.call_statistics import CallStatistics
from kshare_rpc.exchange import server
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.network import CallNotStarted, ChannelUnavailable, Handler, Method, Service, StreamChannel

TIMEOUT_MS = 10_000


class Coordinator:
    """Its JoinGroups wait until `all_joined` is set."""

    def __init__(self) -> None:
        self.joins = 0
        self.all_joined = asyncio.Event()
        self.statistics = CallStatistics()
        """Of its caller."""

    async def join(self, request: pb.JoinGroupRequest, _: memoryview) -> Message:
        self.joins += 1
        await self.all_joined.wait()
        return pb.JoinGroupResponse(member_id="member")

    async def commit(self, request: pb.OffsetCommitRequest, _: memoryview) -> Message:
        return pb.OffsetCommitResponse()

    @property
    def calls_under_way(self) -> int:
        return self.statistics.of_made(methods.JOIN_GROUP.path).under_way


@asynccontextmanager
async def scene() -> AsyncIterator[tuple[Coordinator, StreamChannel]]:
    coordinator = Coordinator()
    handlers: dict[Method[Any, Any], Handler] = {
        methods.JOIN_GROUP: coordinator.join,
        methods.OFFSET_COMMIT: coordinator.commit,
    }
    async with asyncio.timeout(30):
        serving = await GrpcNetwork().serve("127.0.0.1:0", [Service("Coordinator", handlers)])
        channel = GrpcNetwork(statistics=coordinator.statistics).connect(serving.address)
        yield coordinator, channel
        await channel.close()
        await serving.stop(0)


def join(channel: StreamChannel) -> asyncio.Task[tuple[pb.JoinGroupResponse, memoryview]]:
    call = channel.call(methods.JOIN_GROUP, pb.JoinGroupRequest(), timeout_ms=TIMEOUT_MS)
    return asyncio.get_running_loop().create_task(call)


async def commit(channel: StreamChannel) -> None:
    await channel.call(methods.OFFSET_COMMIT, pb.OffsetCommitRequest(), timeout_ms=TIMEOUT_MS)


def test_waiting_calls_leave_room_in_their_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_channel, "CALLS_PER_CHANNEL_LIMIT", 4)
    monkeypatch.setattr(grpc_channel, "LONG_WAITS_PER_CHANNEL_LIMIT", 4)

    async def main() -> None:
        async with scene() as (coordinator, channel):
            joins = [join(channel) for _ in range(4)]
            await commit(channel)
            assert coordinator.calls_under_way == coordinator.joins == 4
            with pytest.raises(ChannelUnavailable, match=r"4 calls that wait for records or members at"):
                await join(channel)
            await asyncio.gather(*[commit(channel) for _ in range(4)])
            given_up = joins.pop()
            given_up.cancel()
            await asyncio.wait([given_up])
            assert coordinator.calls_under_way == 3
            joins.append(join(channel))
            await commit(channel)
            assert coordinator.joins == 5, "the server's call goes on"
            coordinator.all_joined.set()
            await asyncio.gather(*joins)
            assert coordinator.calls_under_way == 0

    asyncio.run(main())


def test_waiting_calls_do_not_hold_back_other_calls_of_their_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also calls that the caller has given up, which the server carries out to their end."""
    monkeypatch.setattr(server, "CALLS_PER_STREAM_LIMIT", 1)
    monkeypatch.setattr(server, "LONG_WAITS_PER_STREAM_LIMIT", 3)

    async def main() -> None:
        async with scene() as (coordinator, channel):
            joins = [join(channel) for _ in range(3)]
            await commit(channel)
            for given_up in joins[1:]:
                given_up.cancel()
            await asyncio.wait(joins[1:])
            for _ in range(2):
                with pytest.raises(CallNotStarted, match="3 calls of the caller already wait"):
                    await join(channel)
                await commit(channel)
            coordinator.all_joined.set()
            await joins[0]
            await join(channel)
            assert coordinator.joins == 4

    asyncio.run(main())


def test_fetches_without_a_wait_have_room_beside_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a Fetch ends the wait of another one, when a client has gone or the gateway stops."""
    monkeypatch.setattr(grpc_channel, "LONG_WAITS_PER_CHANNEL_LIMIT", 4)

    async def main() -> None:
        ended = asyncio.Event()

        async def fetch(request: leader_pb2.FetchRequest, _: memoryview) -> tuple[Message, list[bytes]]:
            if request.max_wait_ms:
                await ended.wait()
            return leader_pb2.FetchResponse(), []

        async with asyncio.timeout(30):
            serving = await GrpcNetwork().serve("127.0.0.1:0", [Service("Leader", {methods.FETCH: fetch})])
            channel = GrpcNetwork().connect(serving.address)

            async def ask(max_wait_ms: int) -> None:
                request = leader_pb2.FetchRequest(max_wait_ms=max_wait_ms)
                await channel.call(methods.FETCH, request, timeout_ms=TIMEOUT_MS)

            waiting = [asyncio.ensure_future(ask(60_000)) for _ in range(4)]
            await asyncio.sleep(0)
            await asyncio.gather(*[ask(0) for _ in range(5)])
            with pytest.raises(ChannelUnavailable):
                await ask(1)
            ended.set()
            await asyncio.gather(*waiting)
            await channel.close()
            await serving.stop(0)

    asyncio.run(main())


def test_calls_that_clients_let_wait_are_known() -> None:
    known = {each.name for each in vars(methods).values() if isinstance(each, Method) and each.may_wait_long}
    assert known == {"Fetch", "FetchStateTopic", "JoinGroup", "ShareFetch", "SyncGroup"}
