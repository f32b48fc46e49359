"""A lease whose answer comes so late that it must not be used any more: the coordinator asks for another one."""

from __future__ import annotations

import asyncio

from support.metadata.cluster import LEASE_MS, Cluster
from support.metadata.etcd_backends import Backend, MemoryBackend
from support.simulation.loop import VirtualLoop

PARTITIONS = 10
SLOW_MS = LEASE_MS // 4
"""To etcd, and back. The lease's grant and the member's key have four such ways, so the session begins when the lease
is over for its holder. etcd counts from the grant's arrival, so for etcd it goes on a while.
"""


def test_a_lease_that_has_run_out_before_its_session_begins_is_given_up() -> None:
    loop = VirtualLoop(time_limit=100.0)

    async def main() -> None:
        backend: Backend = MemoryBackend()
        async with Cluster(backend, group_partitions=PARTITIONS) as cluster:
            await cluster.start(1)
            late = await cluster.start(2)
            slow_until = loop.time() + 3.5 * SLOW_MS / 1000
            late.etcd.delay_ms = lambda: SLOW_MS if loop.time() < slow_until else 0
            await asyncio.sleep(2 * LEASE_MS / 1000)
            await cluster.balanced(within_s=5)
            assert cluster.counts() == [5, 5]

    loop.run(main())
    assert loop.problems == []
