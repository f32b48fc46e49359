"""A host that is isolated for a while, in which other hosts join: at the end all of its links work again."""

from __future__ import annotations

import asyncio
import random

from support.simulation.cluster import Cluster, Shape
from support.simulation.faults import Fault, FaultInjector
from support.simulation.loop import VirtualLoop
from support.simulation.swarm import FAULT_KINDS


def test_the_end_of_an_isolation_unblocks_what_its_beginning_blocked() -> None:
    loop = VirtualLoop()
    cluster = Cluster(loop, "1", Shape())
    injector = FaultInjector(cluster, random.Random(1), FAULT_KINDS)
    isolated, others = "leader-1", ["coordinator-1", "gateway-1", "early client"]

    def blocked() -> set[tuple[str, str]]:
        names = [*others, "late client"]
        links = [link for name in names for link in ((isolated, name), (name, isolated))]
        return {link for link in links if cluster.fabric.is_blocked(*link)}

    async def main() -> None:
        cluster.client("early client")
        injector.start([Fault(0.0, "isolate", (isolated,), 5.0), Fault(2.0, "one-way", (isolated, "late client"), 9.0)])
        await asyncio.sleep(1)
        cluster.client("late client")
        assert blocked() == {link for name in others for link in ((isolated, name), (name, isolated))}
        await asyncio.sleep(9)
        assert blocked() == {(isolated, "late client")}
        await asyncio.sleep(9)
        assert blocked() == set()

    loop.run(main())
    assert loop.problems == []
