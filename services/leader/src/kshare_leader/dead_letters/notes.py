"""The notes of the kafka engine: which dead letters of each source are in the existing cluster.

They are rows of `appended` in the compacted topic `<prefix>dead_letters`, keyed by the source alone: a group that gets
another dead-letter topic sends no second copy. A note is committed with the dead letters that it tells of, in one
transaction of the source's transactional id.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from zlib import crc32

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import SharePartitionKey, topic_id_text
from kshare_leader.dead_letters.appended import AppendedOffsets, decode_row, encode_row
from kshare_leader.dead_letters.target import CannotStore
from kshare_leader.log import keys
from kshare_upstream.committed_records import read_committed_records
from kshare_upstream.own_topics import dead_letter_notes_topic
from kshare_upstream.partition_log import PartitionLog
from kshare_upstream.port import Upstream, UpstreamPartitionName
from kshare_upstream.topics import Replicas, create_topic, durable_configs, too_few_replicas
from kshare_wire.record_writing import BatchWriter

NOTES_PARTITIONS = 16
"""Of the topic when it is made. A note's partition follows from the count, so it may not be changed."""
READS_LIMIT = 4
"""Partitions of the topic that are read at once."""
_CONFIGS = {
    "cleanup.policy": "compact",
    "segment.ms": "3600000",
    "segment.bytes": "16777216",
    "min.cleanable.dirty.ratio": "0.1",
}
"""Compaction is safe here, unlike in the topics of fenced logs: the notes of a fenced producer are aborted."""


class Notes:
    """The topic of the notes; CannotStore where it cannot be used now, or not at all."""

    def __init__(
        self, upstream: Upstream, prefix: str, replicas: Replicas, *, deadline_ms: int, report: Callable[[str], None]
    ) -> None:
        """`prefix` is kshare.upstream.topic.prefix. `report` logs a warning."""
        self.topic = dead_letter_notes_topic(prefix)
        self._upstream = upstream
        self._replicas = replicas
        self._report = report
        self._deadline_ms = deadline_ms
        self._partitions = 0
        self._may_read = asyncio.Semaphore(READS_LIMIT)

    async def partition_of(self, source: SharePartitionKey) -> UpstreamPartitionName:
        """Where the note of a source is; makes the topic if it is missing. Refused, or as any request."""
        if not self._partitions:
            self._partitions = await self._count()
        return UpstreamPartitionName(self.topic, crc32(_key(source)) % self._partitions)

    async def _count(self) -> int:
        view = await self._upstream.describe([self.topic])
        found = view.topics[self.topic]
        if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            count = self._replicas.for_new_topic(len(view.brokers))
            configs = durable_configs(count) | _CONFIGS
            is_new = await create_topic(
                self._upstream, self.topic, partitions=NOTES_PARTITIONS, replicas=count, configs=configs
            )
            if is_new:
                if count < self._replicas.wanted:
                    self._report(too_few_replicas([self.topic], count, self._replicas.wanted))
                return NOTES_PARTITIONS
            raise CannotStore(f"topic {self.topic} was made just now, and is not known to all brokers yet")
        if found.error_code or not found.leaders:
            raise CannotStore(f"topic {self.topic} cannot be used: the cluster answers error {found.error_code}")
        return len(found.leaders)

    async def read(self, source: SharePartitionKey) -> AppendedOffsets | None:
        """The newest committed note of a source whose transactions have all ended."""
        at, key = await self.partition_of(source), _key(source)
        async with self._may_read:
            log = PartitionLog(self._upstream, at, deadline_ms=self._deadline_ms)
            found = await read_committed_records(log, lambda record: record.key == key)
        value = found[-1].value if found else None
        if value is None:
            return None
        try:
            return decode_row(value)
        except struct.error as error:
            text = f"the note of {source} at offset {found[-1].offset} of partition {at} is damaged: {error}"
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, text) from error


def note_batch(source: SharePartitionKey, row: AppendedOffsets, now_ms: int) -> bytes:
    """The batch with a source's note."""
    value = encode_row(row)
    writer = BatchWriter(len(value) + 1_000)
    writer.append(now_ms, _key(source), value, ())
    return writer.build()


def transactional_id(prefix: str, source: SharePartitionKey) -> str:
    """The id that only the leader of the source uses: its next leader fences it."""
    return f"{dead_letter_notes_topic(prefix)}-{topic_id_text(source.topic_id)}-{source.partition}-{source.group_id}"


def _key(source: SharePartitionKey) -> bytes:
    return keys.partition_prefix(source.topic_partition) + source.group_id.encode()
