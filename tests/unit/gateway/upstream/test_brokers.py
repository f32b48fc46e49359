"""The gateway's view of the cluster over simulated brokers."""

from __future__ import annotations

import asyncio
from itertools import permutations

from kshare_gateway.upstream.brokers import REFRESH_MS, UpstreamBrokers
from kshare_upstream.port import ClusterView
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.api_keys import ApiKey
from support.simulation.loop import VirtualLoop
from support.simulation.upstream.brokers import simulated_cluster
from support.simulation.upstream.cluster import SESSION_TIMEOUT_S


def test_the_versions_and_brokers_stay_known_while_brokers_are_fenced() -> None:
    """Where all are fenced, Metadata names no broker; clients must not be told of no versions."""
    views: list[ClusterView] = []

    async def note(view: ClusterView) -> None:
        views.append(view)

    async def main() -> None:
        async with simulated_cluster(1) as (client, cluster):
            brokers = UpstreamBrokers(client, note)
            await brokers.start()
            for one, other in permutations(cluster.hosts, 2):
                cluster.fabric.block(one, other)
            await asyncio.sleep(SESSION_TIMEOUT_S + 3 * REFRESH_MS / 1000)
            assert brokers.problem is not None
            assert brokers.view == views[-1] and len(brokers.view.brokers) == len(cluster.hosts)
            assert brokers.version(ApiKey.METADATA, VersionRange(8, 10)) == 10
            await brokers.stop()

    VirtualLoop().run(main())
