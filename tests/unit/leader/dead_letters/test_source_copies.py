"""The records that dead letters copy from a log in an existing cluster."""

from __future__ import annotations

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_leader.dead_letters.source_copies import fetch_copies
from kshare_leader.machine.archiving import ArchivingRun
from kshare_leader.machine.transitions import ArchivingReason
from kshare_upstream.partition_log import PartitionLog, Refused
from kshare_upstream.port import UpstreamPartitionName
from kshare_upstream.topics import create_topic
from kshare_wire.record_writing import BatchWriter
from support.coordinator.cluster import run_virtually
from support.upstream.memory_upstream import MemoryUpstream

AT = UpstreamPartitionName("orders", 0)


def test_records_that_remote_storage_does_not_bring_in_time_are_not_taken_for_missing_ones() -> None:
    """The dead letter would have no contents, and the record would be archived."""

    async def main() -> None:
        upstream = MemoryUpstream()
        assert await create_topic(upstream, AT.topic, partitions=1, replicas=1, configs={})
        log = PartitionLog(upstream, AT, deadline_ms=1_000)
        writer = BatchWriter(1 << 20)
        assert writer.append(0, b"key", b"value", ())
        await log.append(writer.build())
        run = ArchivingRun(0, 0, 1, ArchivingReason.REJECTED)
        upstream.flaws.slow_storage = True
        with pytest.raises(Refused) as refused:
            await fetch_copies(TopicPartition(b"t" * 16, 0), log, [run], 1 << 20)
        assert refused.value.code == ErrorCode.OFFSET_NOT_AVAILABLE
        upstream.flaws.slow_storage = False
        covered, copies = await fetch_copies(TopicPartition(b"t" * 16, 0), log, [run], 1 << 20)
        assert covered == [run] and len(copies.read(0, 1)) == 1

    run_virtually(main)
