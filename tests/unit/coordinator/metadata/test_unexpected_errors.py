"""Bugs in the background tasks of the metadata stores: each is reported; the store goes on, or it is unhealthy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from kshare_coordinator.metadata.port import CATALOG
from kshare_runtime.ports import Write
from support.metadata.cluster import Cluster, UpstreamCluster
from support.metadata.etcd_backends import MemoryBackend, until
from support.metadata.upstream_backends import UpstreamBackend
from support.simulation.loop import VirtualLoop
from support.upstream.memory_upstream import MemoryUpstream


def reported_in(scene: Callable[[], Awaitable[None]]) -> list[str]:
    """What was reported, without the times."""
    loop = VirtualLoop(time_limit=600)

    async def main() -> None:
        await scene()

    loop.run(main())
    return [problem.partition(": ")[2] for problem in loop.problems]


def failing(times: int, other: Callable[[], int] = lambda: 0) -> Callable[[], int]:
    """Raises what no code expects, so many times."""
    left = times

    def fail() -> int:
        nonlocal left
        if left:
            left -= 1
            raise KeyError("planted")
        return other()

    return fail


def upstream_backend() -> UpstreamBackend:
    memory = MemoryUpstream()
    return UpstreamBackend(lambda: memory, memory)


def test_a_coordinator_that_can_no_longer_follow_the_catalog_in_etcd_is_unhealthy() -> None:
    async def scene() -> None:
        async with Cluster(MemoryBackend(), group_partitions=4) as cluster:
            await cluster.start(1)
            await cluster.start(2)
            await cluster.balanced()
            owner = cluster.owner(CATALOG)
            assert owner is not None
            (other,) = [one for one in cluster.coordinators if one is not owner]

            def fail(writes: Sequence[Write]) -> None:
                raise KeyError("planted")

            other.catalog_changed = fail  # type: ignore[method-assign]
            await owner.put(CATALOG, "n", "1")
            await until(lambda: other.store.problems() != [])
            assert other.store.problems() == [
                "the catalog is no longer followed, restart this coordinator: KeyError('planted')"
            ]
            await owner.put(CATALOG, "n", "2")
            assert owner.store.problems() == []

    assert reported_in(scene) == ["following the catalog failed with an unexpected error: KeyError('planted')"]


def test_a_coordinator_that_can_no_longer_get_a_lease_of_etcd_is_unhealthy() -> None:
    async def scene() -> None:
        async with Cluster(MemoryBackend(), group_partitions=4) as cluster:
            await cluster.start(1)
            other = await cluster.start(2)
            other.etcd.delay_ms = failing(2)  # the first calls of its two tasks
            await until(cluster.is_complete)
            await asyncio.sleep(10)
            (problem,) = [each for each in other.store.problems() if "leases" in each]
            assert problem == "no more leases are requested, restart this coordinator: KeyError('planted')"
            assert cluster.counts() == [4, 0]

    assert "an unexpected error ended the requests for leases: KeyError('planted')" in reported_in(scene)


@pytest.mark.parametrize("failures", [1, 2, 10])
def test_an_owner_in_an_existing_cluster_goes_on_after_unexpected_errors(failures: int) -> None:
    async def scene() -> None:
        async with UpstreamCluster(upstream_backend(), group_partitions=4) as cluster:
            only = await cluster.start(1)
            await cluster.owned()
            await only.put(CATALOG, "n", "1")
            only.upstream.delay_ms = failing(failures)
            await asyncio.sleep(30)
            assert await cluster.owned() is only and only.store.problems() == []
            await only.put(CATALOG, "m", "2")
            assert only.rows(CATALOG) == {"n": "1", "m": "2"}

    reported = reported_in(scene)
    assert len(reported) == failures and all("KeyError('planted')" in text for text in reported)


def test_a_standby_in_an_existing_cluster_reads_the_metadata_again_after_an_unexpected_error() -> None:
    async def scene() -> None:
        async with UpstreamCluster(upstream_backend(), group_partitions=4) as cluster:
            owner = await cluster.start(1)
            await cluster.owned()
            standby = await cluster.start(2)
            changed, fail = standby.catalog_changed, failing(1)

            def fail_once(writes: Sequence[Write]) -> None:
                fail()
                changed(writes)

            standby.catalog_changed = fail_once  # type: ignore[method-assign]
            for number in range(3):
                await owner.put(CATALOG, f"n{number}", "1")
            await until(lambda: standby.catalog == {"n0": "1", "n1": "1", "n2": "1"})
            await until(lambda: standby.store.problems() == [])

    assert reported_in(scene) == ["reading the metadata failed with an unexpected error: KeyError('planted')"]


def test_an_owner_in_an_existing_cluster_goes_on_after_a_caller_was_cancelled() -> None:
    """As when a coordinator stops; seed 600171324 of the kafka engine."""

    async def scene() -> None:
        async with UpstreamCluster(upstream_backend(), group_partitions=4) as cluster:
            only = await cluster.start(1)
            await cluster.owned()
            only.upstream.delay_ms = lambda: 100
            writing = asyncio.ensure_future(only.put(CATALOG, "n", "1"))
            await asyncio.sleep(0.05)
            writing.cancel()
            await asyncio.wait([writing])
            await until(lambda: only.rows(CATALOG) == {"n": "1"})
            await only.put(CATALOG, "m", "2")
            assert only.rows(CATALOG) == {"n": "1", "m": "2"} and only.store.problems() == []

    assert reported_in(scene) == []
