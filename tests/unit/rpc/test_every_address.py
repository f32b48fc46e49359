"""A role that listens at [::] is called by IPv4 and by IPv6."""

from __future__ import annotations

import asyncio

import pytest

from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import DELETE_RECORDS, LEADER
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.network import Service


async def answer(request: leader_pb2.DeleteRecordsRequest, payload: memoryview) -> leader_pb2.DeleteRecordsResponse:
    return leader_pb2.DeleteRecordsResponse()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_a_role_at_every_address(host: str) -> None:
    async def main() -> None:
        network = GrpcNetwork()
        server = await network.serve("[::]:0", [Service(LEADER, {DELETE_RECORDS: answer}, healthy=lambda: True)])
        channel = network.connect(f"{host}:{server.address.rpartition(':')[2]}")
        response, _ = await channel.call(DELETE_RECORDS, leader_pb2.DeleteRecordsRequest(), timeout_ms=5_000)
        assert response == leader_pb2.DeleteRecordsResponse()
        await channel.close()
        await server.stop(0)

    asyncio.run(main())
