"""Read-ahead into the cache, so that the next ShareFetch needs no record bytes (docs/internals/gateway.md).

It starts after a response with records, while the client works, if less is cached ahead of the partition's next offset
than that response took. One background `Fetch` reads about twice as many bytes, at least READ_AHEAD_MINIMUM_BYTES. At
most one is in flight for a partition, and none when the log has no more records (the high watermark). The result goes
only to the cache. A failure loses nothing: the leader then sends the bytes with its response.
"""

from __future__ import annotations

from kshare_core.identifiers import TopicPartition
from kshare_gateway.gateway import Gateway, log
from kshare_gateway.records.batch_cache import split_batches
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import FETCH
from kshare_rpc.network import CallFailed

READ_AHEAD_MINIMUM_BYTES = 1024 * 1024
READ_AHEAD_MAXIMUM_BYTES = 8 * 1024 * 1024


class ReadAhead:
    """The read-ahead of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._limit_bytes = gateway.cache.limit_bytes
        self._under_way: dict[TopicPartition, None] = {}

    def after_answer(
        self, key: TopicPartition, address: str, answer: leader_pb2.ShareFetchResponse.Partition, taken_bytes: int
    ) -> None:
        """Sets the partition's read position and starts a Fetch if little is cached ahead."""
        if not self._limit_bytes or not answer.acquired_records:
            return
        next_offset = answer.next_fetch_offset
        start = self._gateway.cache.advance(key, next_offset)
        taken_records = sum(run.last_offset - run.first_offset + 1 for run in answer.acquired_records)
        if start >= answer.high_watermark or start - next_offset > taken_records or key in self._under_way:
            return
        size = min(max(READ_AHEAD_MINIMUM_BYTES, 2 * taken_bytes), READ_AHEAD_MAXIMUM_BYTES, self._limit_bytes)
        self._under_way[key] = None
        self._gateway.spawn(self._fetch(key, address, start, size), "read-ahead")

    async def _fetch(self, key: TopicPartition, address: str, offset: int, size: int) -> None:
        request = leader_pb2.FetchRequest(
            max_bytes=size,
            partitions=[
                leader_pb2.FetchRequest.Partition(
                    topic_id=key.topic_id,
                    partition=key.partition,
                    current_leader_epoch=-1,
                    fetch_offset=offset,
                    partition_max_bytes=size,
                )
            ],
        )
        try:
            _, payload = await self._gateway.call_leader(address, FETCH, request)
        except CallFailed as failure:
            self._gateway.metrics.read_ahead_failures += 1
            log.info("read-ahead of partition %d at %s failed: %s", key.partition, address, failure)
            return
        finally:
            del self._under_way[key]
        if key.topic_id not in self._gateway.view.topics_by_id:
            return
        self._gateway.metrics.read_ahead_bytes += len(payload)
        for batch in split_batches(payload):
            self._gateway.cache.put(key, batch)
