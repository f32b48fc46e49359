"""The delivery history is the same in an existing cluster as in kshare's own logs: topic, partitions and records."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any, cast

from kshare_core.configs import Configs
from kshare_core.configs.process import PROCESS_CONFIGS
from kshare_core.delivery_history import HISTORY_TOPIC
from kshare_leader.history.buffer import EventStream
from kshare_leader.history.cluster_target import ClusterHistoryTarget
from kshare_leader.history.numbers import Number
from kshare_leader.history.publisher import HistoryPublisher
from kshare_leader.metrics import HistoryCounts
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import LOOK_UP_TOPICS
from kshare_rpc.network import Channel
from kshare_upstream.committed_records import read_committed_records
from kshare_upstream.partition_log import PartitionLog
from kshare_upstream.port import Upstream, UpstreamPartitionName
from kshare_upstream.topics import delete_topic, topic_config
from support.leader.history_clusters import EMBEDDED, KEYS, PARTITIONS, HistoryCluster, history_topic, view_with
from support.leader.log.leader_logs import StillClock
from support.leader.share.service import run
from support.upstream.opened import opened, run_with

TIMEOUT_S = 30.0
EVENTS = [(stream, f'"{number}"') for number in range(50) for stream in range(len(KEYS))]


class Leader:
    """A publisher whose coordinator looks topics up in the cluster."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._view = view_with()
        self.counts = HistoryCounts()
        self.reports: list[str] = []
        names = {"topic.num.partitions": str(PARTITIONS), "retention.ms": "7200000"}
        configs = Configs(PROCESS_CONFIGS, {f"kshare.delivery.history.{name}": value for name, value in names.items()})
        self.target = ClusterHistoryTarget(
            upstream=upstream,
            view=lambda: self._view,
            coordinator=lambda: cast(Channel, self),
            wait_for_version=self._wait_for_version,
            configs=configs,
            report=self.reports.append,
        )
        self.publisher = HistoryPublisher(
            target=self.target,
            buffer_bytes=1 << 20,
            clock=StillClock(),
            random=random.Random(1),
            report=self.reports.append,
            counts=self.counts,
        )

    async def call(self, method: object, request: Any, *, timeout_ms: int) -> tuple[Any, memoryview]:
        assert method is LOOK_UP_TOPICS and list(request.topic_names) == [HISTORY_TOPIC]
        found = (await self._upstream.describe([HISTORY_TOPIC])).topics[HISTORY_TOPIC]
        if found.leaders:
            topic = coordinator_pb2.Topic(topic_id=found.topic_id, name=HISTORY_TOPIC, internal=True)
            for partition in found.leaders:
                topic.partitions.add(partition=partition)
            self._view = replace(view_with(topic), version=2)
        return coordinator_pb2.LookUpTopicsResponse(version=self._view.version), memoryview(b"")

    async def _wait_for_version(self, version: int, timeout_ms: int) -> bool:
        return version == self._view.version


def tell(publisher: HistoryPublisher) -> None:
    streams = [EventStream(publisher.buffer, Number(0), key, '{"sequence":', ',"events":[') for key in KEYS]
    for stream, text in EVENTS:
        streams[stream].add(text)


async def published(publisher: HistoryPublisher, counts: HistoryCounts) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while counts.published < len(EVENTS):
            await asyncio.sleep(0.01)
    await publisher.stop()


def stored_by_embedded() -> dict[int, list[tuple[bytes, bytes]]]:
    cluster = HistoryCluster(EMBEDDED, view_with(history_topic()))

    async def main() -> None:
        tell(cluster.publisher)
        await published(cluster.publisher, cluster.counts)

    run(main)
    return cluster.stored


def test_topic_and_records_are_those_of_the_embedded_engine(bootstrap: str) -> None:
    expected = stored_by_embedded()

    async def main() -> None:
        async with opened(bootstrap) as upstream:
            leader = Leader(upstream)
            tell(leader.publisher)
            await published(leader.publisher, leader.counts)
            found = {}
            for partition in range(PARTITIONS):
                log = PartitionLog(upstream, UpstreamPartitionName(HISTORY_TOPIC, partition))
                records = await read_committed_records(log, lambda record: True)
                found[partition] = [(record.key or b"", record.value or b"") for record in records]
            assert found == expected and all(found.values())
            assert (leader.counts.dropped, leader.counts.buffer_bytes) == (0, 0)
            if (retention := await topic_config(upstream, HISTORY_TOPIC, "retention.ms")) is not None:
                assert retention == "7200000"
            await leader.target.close()
            await delete_topic(upstream, HISTORY_TOPIC)

    run_with(bootstrap, main())
