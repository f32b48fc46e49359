"""What idle share-partitions cost a leader in memory: each was fetched from once, has one member, and nothing to do."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

from kshare_core.identifiers import SharePartitionKey
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_share_coordinator.machine.operations import InitializeState, ReadState
from support.leader.share.service import LEADER_EPOCH, TOPIC, Leader, fetch_partition


async def load(leader: Leader, groups: int, partitions: int) -> None:
    """Each group's one member fetches from every partition, and finds nothing."""
    for index in range(groups):
        await leader.service.share_fetch(_request(index, partitions), memoryview(b""))
        await asyncio.sleep(0.01)


def _request(group: int, partitions: int) -> leader_pb2.ShareFetchRequest:
    owner = leader_pb2.ShareSessionOwner(
        group_id=f"group-{group}", member_id=f"member-{group}", gateway_id=1, gateway_incarnation="g1"
    )
    return leader_pb2.ShareFetchRequest(
        owner=owner,
        max_records=500,
        max_bytes=1 << 20,
        min_bytes=1,
        batch_size=500,
        fetch_number=group + 1,
        partitions=[fetch_partition(index) for index in range(partitions)],
    )


async def measure(groups: int, partitions: int) -> int:
    """The bytes that all of `groups` x `partitions` share-partitions take; the logs are there already."""
    leader = Leader(partitions=partitions)
    for index in range(partitions):
        leader.log(index).append(10)
        for group in range(groups):
            key = SharePartitionKey(f"group-{group}", TOPIC, index)
            leader.channel.run(InitializeState(key, 3, 10))
            leader.channel.run(ReadState(key, LEADER_EPOCH))  # so that loading it changes nothing there
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        await load(leader, groups, partitions)
        gc.collect()
        served = [each for group in range(groups) for each in leader.service._directory.of_group(f"group-{group}")]
        assert len(served) == groups * partitions
        assert all(each.machine is not None and each.machine.start_offset == 10 for each in served)
        del served
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        await leader.service.stop()
