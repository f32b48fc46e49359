"""An append whose pieces are beside the journal, with a coordinator that reads the catalog while it is written."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from kshare_coordinator.metadata.etcd.port import end_of_prefix
from kshare_coordinator.metadata.port import CATALOG
from support.metadata.cluster import PREFIX, Cluster
from support.metadata.etcd_backends import Backend, Play, play_on, until

ROWS = PREFIX.encode() + b"rows/-1/"
SLOW_MS = 250
"""Of each way, so that the second coordinator starts between the append's two requests."""
LIMIT = {"value_bytes_limit": 60}
LARGE = "x" * 600
"""Ten pieces and more, so that on a real etcd the entry comes seconds after the first of them."""


@pytest.fixture(params=["memory", "etcd"])
def play(request: pytest.FixtureRequest) -> Play:
    return lambda scene: play_on(cast("str", request.param), scene)


async def stored(cluster: Cluster, kind: bytes) -> int:
    prefix = ROWS + kind
    return len((await cluster.raw.range(prefix, end_of_prefix(prefix))).pairs)


def test_who_read_the_pieces_before_their_entry_does_not_remove_them_as_its_owner(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=1) as cluster:
            a = await cluster.start(1, **LIMIT)
            await until(lambda: a.store.owns(CATALOG))
            a.etcd.delay_ms = lambda: SLOW_MS
            appending = asyncio.ensure_future(a.put(CATALOG, "large", LARGE))
            while not await stored(cluster, b"large/"):
                await asyncio.sleep(0.005)
            b = await cluster.start(2, **LIMIT)
            assert not await stored(cluster, b"journal/") and b.catalog == {}
            a.etcd.delay_ms = lambda: 0
            await appending
            await until(lambda: b.catalog == {"large": LARGE})
            await cluster.stop(a)
            await until(lambda: b.store.owns(CATALOG))
            for number in range(10):  # it removes meanwhile what belongs to no entry
                await b.put(CATALOG, "after", str(number))
            c = await cluster.start(3, **LIMIT)
            assert c.catalog == b.rows(CATALOG) == {"large": LARGE, "after": "9"}

    play(scene)
