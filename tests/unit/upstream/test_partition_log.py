"""Reads of a log in an existing cluster: a client above its quota."""

from __future__ import annotations

import pytest

from kshare_upstream.partition_log import OutcomeUnknown, PartitionLog
from kshare_upstream.port import UpstreamPartitionName
from kshare_upstream.topics import create_topic
from kshare_wire.record_writing import BatchWriter
from support.coordinator.cluster import run_virtually
from support.upstream.memory_upstream import MemoryUpstream

AT = UpstreamPartitionName("kshare-state", 0)


@pytest.mark.parametrize("throttled", [1, 7, 10_000])
def test_a_read_that_a_quota_throttles_is_repeated_at_the_same_offset(throttled: int) -> None:
    """Its answer has no partition and no error. It is neither the end of the log nor a mistake of the broker."""

    async def main() -> None:
        upstream = MemoryUpstream()
        assert await create_topic(upstream, AT.topic, partitions=1, replicas=1, configs={})
        log = PartitionLog(upstream, AT, deadline_ms=5_000)
        writer = BatchWriter(1 << 20)
        assert writer.append(0, b"key", b"value", ())
        await log.append(writer.build())
        upstream.flaws.throttled_fetches = throttled
        if throttled < 10:
            assert (await log.read(0)).data
            return
        with pytest.raises(OutcomeUnknown, match="quota"):
            await log.read(0)

    run_virtually(main)
