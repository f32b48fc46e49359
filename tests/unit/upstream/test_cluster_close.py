"""A closed client of an existing cluster opens no connection any more: its node would leave the socket open."""

from __future__ import annotations

import asyncio

import pytest

from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings, ConnectionLost


def test_a_closed_client_connects_to_nobody() -> None:
    async def scenario() -> None:
        accepted = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.append(writer)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        cluster = Cluster([BrokerAddress("127.0.0.1", port)], ClientSettings())
        await cluster.close()
        with pytest.raises(ConnectionLost, match="closed"):
            await cluster.describe([])
        server.close()
        await server.wait_closed()
        assert accepted == []

    asyncio.run(scenario())
