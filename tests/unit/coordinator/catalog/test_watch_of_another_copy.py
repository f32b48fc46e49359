"""A node that watches, and has a version of a catalog that this coordinator's is not a later version of."""

from __future__ import annotations

import asyncio

import pytest

from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.cluster import CoordinatorCluster, run_virtually


@pytest.mark.parametrize(("knows", "is_full"), [("this start", False), ("nothing", False), ("another start", True)])
def test_versions_that_were_counted_after_another_start_are_not_known(knows: str, is_full: bool) -> None:
    """The coordinator was restored from a copy, and has counted past the version that the node had before."""

    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        await cluster.register(pb.ROLE_LEADER, 1, "leader:1")
        kept = (await cluster.create_topic("kept")).topic_id
        first = await cluster.watch(pb.ROLE_LEADER, 1, 0, 0)
        changed = (await cluster.create_topic("changed")).topic_id
        start_id = {"this start": first.starts[-1].start_id, "nothing": "", "another start": "of a lost copy"}[knows]
        request = pb.WatchCatalogRequest(
            role=pb.ROLE_LEADER, node_id=1, incarnation="one", after_version=first.version, start_id=start_id
        )
        answer = await cluster.call(methods.WATCH_CATALOG, request)
        assert answer.full == is_full
        assert {topic.topic_id for topic in answer.topics if not topic.internal} == {changed} | (
            {kept} if is_full else set()
        )
        request.after_version, request.max_wait_ms = answer.version, 1_000
        began_s = asyncio.get_running_loop().time()
        again = await cluster.call(methods.WATCH_CATALOG, request)
        assert again.full == is_full, "an equal version may have other changes"
        assert (asyncio.get_running_loop().time() == began_s) == is_full, "only news end a wait"
        await cluster.node.stop(0)

    run_virtually(main)
