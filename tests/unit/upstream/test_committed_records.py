"""Committed records of a partition whose new leader does not know yet how far the log was confirmed."""

from __future__ import annotations

import asyncio

import pytest

from kshare_core.errors import ErrorCode
from kshare_upstream.committed_records import read_committed_records
from kshare_upstream.partition_log import PartitionLog, Refused
from kshare_upstream.port import REQUESTS, AResponse
from kshare_upstream.port import UpstreamPartitionName as Name
from kshare_upstream.topics import create_topic
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.responses.fetch import FetchResponse
from kshare_wire.messages import Request
from kshare_wire.record_writing import BatchWriter
from support.upstream.memory_upstream import MemoryUpstream

AT = Name("notes", 0)


class LaggingLeader(MemoryUpstream):
    """Its high watermark for Fetch is behind while `lags` (KIP-207)."""

    lags = False

    async def ask_broker(
        self,
        node_id: int,
        request: Request[AResponse],
        served: VersionRange,
        *,
        wait_ms: int = 0,
        purpose: str = REQUESTS,
    ) -> AResponse:
        answer = await super().ask_broker(node_id, request, served, wait_ms=wait_ms, purpose=purpose)
        if self.lags and isinstance(answer, FetchResponse):
            for topic in answer.responses:
                for partition in topic.partitions:
                    partition.records, partition.high_watermark = None, 0
        return answer


def test_an_end_that_the_leader_does_not_know_yet_is_not_the_end_of_the_log() -> None:
    async def main() -> None:
        upstream = LaggingLeader()
        assert await create_topic(upstream, AT.topic, partitions=1, replicas=1, configs={})
        log = PartitionLog(upstream, AT, deadline_ms=1_000)
        writer = BatchWriter(1 << 20)
        assert writer.append(0, b"source", b"note", ())
        await log.append(writer.build())
        upstream.lags = True
        with pytest.raises(Refused) as refused:
            await read_committed_records(log, lambda record: True)
        assert refused.value.code == ErrorCode.OFFSET_NOT_AVAILABLE
        upstream.lags = False
        assert [record.value for record in await read_committed_records(log, lambda record: True)] == [b"note"]

    asyncio.run(main())
