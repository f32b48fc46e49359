"""Dead letters by group and reason, from the newest records of the dead-letter topics that groups are configured with.

A dead letter names its group, source and reason in headers (KIP-1191). Only the newest SCANNED_RECORDS of each
partition are read, so counts of large topics are those of their newest part, and the answer says so. Records are
counted batch by batch and not kept, because a few kilobytes of a log may decompress to gigabytes.
"""

from __future__ import annotations

import asyncio
import time
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from kshare_console.cluster_client import GROUP_CONFIGS, ClusterClient, reading
from kshare_console.refusal import Refusal
from kshare_console.views.paging import Json
from kshare_core.dead_letter_headers import CONTEXT_PREFIX
from kshare_core.errors import KafkaError
from kshare_kafka_client.redrive.candidates import REASON_OF_MESSAGE
from kshare_upstream.fenced_log.fold import whole_batches
from kshare_upstream.partition_log import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from kshare_wire.record_batches import read_header
from kshare_wire.record_reading import OpenedRecord, open_window

TOPIC_CONFIG = "errors.deadletterqueue.topic.name"
TOPICS_LIMIT = 50
PARTITIONS_LIMIT = 100
"""Of one topic; those with the lowest numbers are read."""
SCANNED_RECORDS = 2_000
"""Of one partition, from its end."""
SCANNED_BYTES = 4 * 1024 * 1024
"""Of one partition in one fetch."""
PART_RECORDS = 250
"""Are read at once, so that the limits below leave out the oldest records."""
FETCHES_LIMIT = 8
OPENED_LIMIT_BYTES = 32 * 1024 * 1024
"""A batch that decompresses to more is not opened."""
PARTITION_LIMIT_BYTES, ANSWER_LIMIT_BYTES = 64 * 1024 * 1024, 512 * 1024 * 1024
"""Records after decompression that are read of one partition, and for one answer; further ones are not counted."""
REASONS_LIMIT = 1_000
TEXT_LIMIT_BYTES = 1_000
"""Of a header's value; the rest is cut off."""
CONTEXT = frozenset(
    CONTEXT_PREFIX + name for name in ("group", "message", "topic", "partition", "offset", "delivery.count")
)
"""The headers of a dead letter that are read."""
EXAMPLES = 5
AT_ONCE = 4
"""Partitions that are read at the same time."""
KEPT_S = 5.0


HEADER_BYTES = 80
"""What a header takes in memory, besides its bytes."""


@dataclass(slots=True)
class Reason:
    """Dead letters of one group for one reason, in one topic."""

    group_id: str
    topic: str
    reason: str
    count: int = 0
    first_ms: int = 0
    last_ms: int = 0
    examples: list[tuple[tuple[int, int, int], Mapping[str, str]]] = field(default_factory=list)
    """The newest, in order: time, partition and offset of each, and its headers."""

    def add(self, letter: OpenedRecord, partition: int, source: Mapping[str, str]) -> None:
        self.count += 1
        self.first_ms = min(self.first_ms or letter.timestamp_ms, letter.timestamp_ms)
        self.last_ms = max(self.last_ms, letter.timestamp_ms)
        insort(self.examples, ((letter.timestamp_ms, partition, letter.offset), source), key=itemgetter(0))
        del self.examples[:-EXAMPLES]


class Tally:
    """The dead letters that one answer counts. It keeps examples of each reason, and no other records."""

    def __init__(self) -> None:
        self.reasons: dict[tuple[str, str, str], Reason] = {}
        self.is_partial = False
        """Whether records were left out."""
        self._left_bytes = ANSWER_LIMIT_BYTES

    def add_batch(
        self, topic: str, partition: int, batch: memoryview, *, first_offset: int, partition_left_bytes: int
    ) -> int:
        """Counts a batch's dead letters from `first_offset` on; returns how many bytes of the limits were used."""
        limit_bytes = min(OPENED_LIMIT_BYTES, partition_left_bytes, self._left_bytes)
        used_bytes = 0
        if limit_bytes <= 0:
            self.is_partial = True
            return used_bytes
        try:
            header = read_header(batch)
            letters = open_window(batch, header.base_offset, header.record_count, limit_bytes=limit_bytes)
            self.is_partial = self.is_partial or len(letters) < header.record_count  # more headers than are opened
            for letter in letters:
                used_bytes += size_bytes(letter)
                if letter.offset >= first_offset:
                    self.add(topic, partition, letter)
        except KafkaError:  # it decompresses further than the limit, or is corrupt
            self.is_partial = True
            used_bytes = limit_bytes if read_header(batch).compression else len(batch)
        self._left_bytes -= used_bytes
        return used_bytes

    def add(self, topic: str, partition: int, letter: OpenedRecord) -> None:
        """Counts a dead letter; a record without the headers of one is left out."""
        source = context_of(letter.headers)
        if "group" not in source:
            return
        text = source.get("message", "")
        key = (source["group"], topic, REASON_OF_MESSAGE.get(text, text or "unknown"))
        if key not in self.reasons:
            if len(self.reasons) >= REASONS_LIMIT:
                self.is_partial = True
                return
            self.reasons[key] = Reason(*key)
        self.reasons[key].add(letter, partition, source)


class DeadLetters:
    """The dead letters that one principal may read; an answer is kept for KEPT_S."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._lock = asyncio.Lock()
        self._kept: tuple[float, Json] | None = None

    async def read(self) -> Json:
        async with self._lock:
            if self._kept is not None and time.monotonic() - self._kept[0] < KEPT_S:
                return self._kept[1]
            found = await self._read()
            self._kept = (time.monotonic(), found)
            return found

    async def topics(self) -> dict[str, list[str]]:
        """Dead-letter topics, with the groups that are configured with each."""
        groups = [group.group_id for group in await self._client.list_groups()]
        configs = await self._client.configs(GROUP_CONFIGS, groups, [TOPIC_CONFIG]) if groups else {}
        found: dict[str, list[str]] = {}
        for group_id in groups:
            for entry in configs.get(group_id, ()):
                if entry.name == TOPIC_CONFIG and entry.value:
                    found.setdefault(entry.value, []).append(group_id)
        return found

    async def _read(self) -> Json:
        topics = await self.topics()
        tally = Tally()
        problems: list[Json] = []
        tally.is_partial = len(topics) > TOPICS_LIMIT
        limit = asyncio.Semaphore(AT_ONCE)
        for topic in sorted(topics)[:TOPICS_LIMIT]:
            try:
                described = await self._client.topic(topic)
                numbers = sorted(each.partition_index for each in described.partitions)
                tally.is_partial |= len(numbers) > PARTITIONS_LIMIT
                wanted = numbers[:PARTITIONS_LIMIT]
                starts = await self._client.end_offsets(topic, wanted, EARLIEST_TIMESTAMP)
                ends = await self._client.end_offsets(topic, wanted, LATEST_TIMESTAMP)
                spans = {each: (starts.get(each, 0), ends[each]) for each in wanted if each in ends}
                tally.is_partial |= any(end - start > SCANNED_RECORDS for start, end in spans.values())
                await asyncio.gather(
                    *(self._count(tally, topic, each, start, end, limit) for each, (start, end) in spans.items())
                )
            except Refusal as problem:
                problems.append({"words": problem.words, "where": topic})
        items = sorted(tally.reasons.values(), key=lambda each: (-each.count, each.group_id, each.reason))
        return {
            "items": [shown(each) for each in items],
            "is_partial": tally.is_partial,
            "scanned_records_per_partition": SCANNED_RECORDS,
            "topics": [{"topic": topic, "groups": groups} for topic, groups in sorted(topics.items())],
            "problems": problems,
        }

    async def _count(
        self, tally: Tally, topic: str, partition: int, start: int, end: int, limit: asyncio.Semaphore
    ) -> None:
        """Counts the newest records of one partition: the last PART_RECORDS of them, then those before, and so on."""
        first_offset = max(start, end - SCANNED_RECORDS)
        left_bytes, fetches = PARTITION_LIMIT_BYTES, 0
        async with limit, reading(f"reading {topic}-{partition}"):
            while end > first_offset:
                offset = begin = max(first_offset, end - PART_RECORDS)
                while offset < end:
                    if fetches == FETCHES_LIMIT or left_bytes <= 0:
                        tally.is_partial = True
                        return
                    fetches += 1
                    records = await self._client.log(topic, partition).read(offset, max_bytes=SCANNED_BYTES)
                    following = offset
                    for header, data in whole_batches(records.data):
                        if header.base_offset >= end:
                            following = end
                            break
                        begin = min(begin, max(first_offset, header.base_offset))  # the batch is counted as a whole
                        following = header.base_offset + header.last_offset_delta + 1
                        if not header.is_control:
                            left_bytes -= tally.add_batch(
                                topic, partition, data, first_offset=first_offset, partition_left_bytes=left_bytes
                            )
                    if following <= offset:
                        tally.is_partial = True
                        break
                    offset = following
                end = begin


def context_of(headers: Sequence[tuple[str, bytes | None]]) -> dict[str, str]:
    """CONTEXT without its prefix; the last header of a name counts, as the others are the record's."""
    found = {}
    for header, raw in headers:
        if header in CONTEXT and raw is not None:
            found[header.removeprefix(CONTEXT_PREFIX)] = raw[:TEXT_LIMIT_BYTES].decode(errors="replace")
    return found


def size_bytes(letter: OpenedRecord) -> int:
    headers = sum(HEADER_BYTES + len(name) + len(raw or b"") for name, raw in letter.headers)
    return len(letter.key or b"") + len(letter.value or b"") + headers


def number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 20 else None


def shown(reason: Reason) -> Json:
    return {
        "group_id": reason.group_id,
        "dead_letter_topic": reason.topic,
        "reason": reason.reason,
        "count": reason.count,
        "first_ms": reason.first_ms,
        "last_ms": reason.last_ms,
        "examples": [example(reason.topic, *each) for each in reversed(reason.examples)],
    }


def example(topic: str, place: tuple[int, int, int], source: Mapping[str, str]) -> Json:
    time_ms, partition, offset = place
    return {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "time_ms": time_ms,
        "source_topic": source.get("topic"),
        "source_partition": number(source.get("partition")),
        "source_offset": number(source.get("offset")),
        "delivery_count": number(source.get("delivery.count")),
    }
