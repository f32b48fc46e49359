"""What only an existing cluster does to the delivery history: limits, configs and rights of its own, and silence."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from kshare_core.delivery_history import HISTORY_TOPIC
from kshare_core.errors import ErrorCode
from kshare_leader.history.limits import FLUSH_INTERVAL_MS, PRODUCE_TIMEOUT_MS, STOP_TIMEOUT_MS
from kshare_rpc.catalog import CatalogView
from support.leader.history_clusters import KAFKA, HistoryCluster, history_topic, view_with
from support.leader.share.service import run


def scenario(
    test: Callable[[HistoryCluster], Coroutine[Any, Any, None]], view: CatalogView | None = None, **configs: str
) -> None:
    async def whole() -> None:
        cluster = HistoryCluster(KAFKA, view_with(history_topic()) if view is None else view, **configs)
        await test(cluster)
        await cluster.publisher.stop()

    run(whole)


def test_a_cluster_that_refuses_the_configs_gets_the_topic_with_its_own() -> None:
    async def test(cluster: HistoryCluster) -> None:
        cluster.create_answers = [ErrorCode.POLICY_VIOLATION]
        cluster.streams[0].add("1")
        await asyncio.sleep(1)
        assert [configs for _, _, configs in cluster.created] == [
            {"cleanup.policy": "delete", "retention.ms": "604800000"},
            {},
        ]
        assert cluster.values() == [b"<0>[1]}"] and cluster.counts.failures == 0
        (told,) = cluster.reports
        assert "without cleanup.policy=delete, retention.ms=604800000" in told and "POLICY_VIOLATION" in told

    scenario(test, view_with())


def test_missing_rights_are_named_and_heal() -> None:
    async def test(cluster: HistoryCluster) -> None:
        cluster.create_answers = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        cluster.answers = {"leader:1": [ErrorCode.TOPIC_AUTHORIZATION_FAILED]}
        for stream in cluster.streams:
            stream.add("1")
        await asyncio.sleep(5)
        assert len(cluster.reports) == 2, "one for CreateTopics, one for Produce"
        for told in cluster.reports:
            assert HISTORY_TOPIC in told and "kshare's user needs Create, Describe, DescribeConfigs, Write" in told
        assert cluster.values() == [b"<0>[1]}"] * 4 and cluster.counts.dropped == 0

    scenario(test, view_with())


def test_a_limit_that_became_smaller_loses_nothing() -> None:
    async def test(cluster: HistoryCluster) -> None:
        noise = random.Random(3)
        cluster.streams[0].add("1")
        await asyncio.sleep(1)
        cluster.max_message_bytes = 200_000
        for _ in range(8):
            cluster.streams[0].add(f'"{noise.randbytes(40_000).hex()}"')
        cluster.answers = {f"leader:{number}": [ErrorCode.MESSAGE_TOO_LARGE] for number in (1, 2)}
        await asyncio.sleep(5)
        assert (cluster.counts.published, cluster.counts.dropped, cluster.counts.failures) == (9, 0, 1)
        assert all(len(values) <= cluster.max_message_bytes for values in cluster.values())

    scenario(test)


def test_a_broker_that_never_answers_holds_up_no_other_for_long() -> None:
    async def test(cluster: HistoryCluster) -> None:
        cluster.silent = {"leader:1"}
        for stream in cluster.streams:
            stream.add("1")
        await asyncio.sleep((FLUSH_INTERVAL_MS + PRODUCE_TIMEOUT_MS) / 1000 + 0.1)
        assert any("no answer within 10000 ms" in told for told in cluster.reports)
        for stream in cluster.streams:
            stream.add("2")
        await asyncio.sleep(2)
        assert b"<1>[2]}" in {value for _, value in cluster.stored[1]}
        began = asyncio.get_running_loop().time()
        await cluster.publisher.stop()
        assert asyncio.get_running_loop().time() - began <= STOP_TIMEOUT_MS / 1000 + 0.01

    scenario(test)
