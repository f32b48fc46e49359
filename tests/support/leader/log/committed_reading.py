"""A consumer with Kafka's isolation.level that reads a leader's Fetch: the records that an application would get."""

from __future__ import annotations

from typing import NamedTuple

from kshare_core.identifiers import TopicPartition
from kshare_leader.handlers.fetch import FetchHandler
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_wire.record_batches import read_headers
from kshare_wire.record_reading import open_records

ABORT_KEY = b"\x00\x00\x00\x00"
"""The key of a control record: version 0, type 0."""


class Seen(NamedTuple):
    """A record that the application gets."""

    offset: int
    value: bytes | None


async def fetch_once(
    logs: PartitionLogs, key: TopicPartition, offset: int, *, committed: bool, max_bytes: int = 1 << 20
) -> tuple[leader_pb2.FetchResponse.Partition, bytes]:
    request = leader_pb2.FetchRequest(
        max_bytes=1 << 20,
        isolation_level=int(committed),
        partitions=[
            leader_pb2.FetchRequest.Partition(
                topic_id=key.topic_id,
                partition=key.partition,
                current_leader_epoch=-1,
                fetch_offset=offset,
                partition_max_bytes=max_bytes,
            )
        ],
    )
    response, payload = await FetchHandler(logs)(request, memoryview(b""))
    return response.partitions[0], b"".join(payload)


async def consume(
    logs: PartitionLogs, key: TopicPartition, *, committed: bool, max_bytes: int = 1 << 20, start: int = 0
) -> list[Seen]:
    """All that a consumer sees from `start` on, fetching until nothing more comes.

    It filters as CompletedFetch of Kafka's consumer does: each fetch begins anew with the aborted transactions of its
    answer, and an abort marker ends its producer's.
    """
    seen: list[Seen] = []
    offset = start
    while True:
        answer, data = await fetch_once(logs, key, offset, committed=committed, max_bytes=max_bytes)
        assert answer.error_code == 0, answer.error_code
        if not data:
            return seen
        waiting = sorted([(entry.first_offset, entry.producer_id) for entry in answer.aborted_transactions])
        aborted: dict[int, None] = {}
        for header in read_headers(data):
            batch = data[header.position : header.position + header.size]
            while waiting and waiting[0][0] <= header.last_offset:
                aborted[waiting.pop(0)[1]] = None
            records = list(open_records(batch))
            if header.is_control:
                if records[0].key == ABORT_KEY:
                    aborted.pop(header.producer_id, None)
            elif not (committed and header.is_transactional and header.producer_id in aborted):
                seen.extend([Seen(record.offset, record.value) for record in records if record.offset >= offset])
            last_offset = header.last_offset
        offset = last_offset + 1
