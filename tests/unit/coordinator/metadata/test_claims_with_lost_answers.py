"""A claim whose answer is lost may have taken more than the share that its coordinator has when it looks again."""

from __future__ import annotations

import asyncio

from support.metadata.cluster import Cluster
from support.metadata.etcd_backends import Backend, MemoryBackend, until
from support.simulation.loop import VirtualLoop

PARTITIONS = 10


def test_what_was_claimed_without_an_answer_and_is_too_much_by_then_is_given_back() -> None:
    loop = VirtualLoop(time_limit=100.0)

    async def main() -> None:
        backend: Backend = MemoryBackend()
        async with Cluster(backend, group_partitions=PARTITIONS) as cluster:
            first = await cluster.start(1)
            first.etcd.delay_ms = lambda: 20
            while first.etcd.transactions < 2:  # the first says that it lives, the second claims
                await asyncio.sleep(0.001)
            first.etcd.lose_answers(1)
            await until(lambda: not first.etcd.has_faults, within_s=1)
            second, third = await cluster.start(2), await cluster.start(3)
            await asyncio.sleep(0.02)
            assert cluster.counts() == [0, 0, 0], "the keys are the first one's, and it does not know"
            await cluster.balanced(within_s=5)
            assert sorted(cluster.counts()) == [2, 4, 4]
            assert second.owners == third.owners == first.owners

    loop.run(main())
    assert loop.problems == []
