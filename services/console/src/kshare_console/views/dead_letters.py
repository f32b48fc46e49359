"""Dead letters by group and reason, from the newest records of the dead-letter topics that groups are configured with.

A dead letter names its group, source and reason in headers (KIP-1191). Only the newest SCANNED_BYTES of each partition
are read, so counts of large topics are those of their newest part, and the answer says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kshare_console.cluster_client import GROUP_CONFIGS, SHARE, ClusterClient, reading
from kshare_console.refusal import Refusal
from kshare_console.views.paging import Json
from kshare_kafka_client.redrive.candidates import CONTEXT_PREFIX, REASON_OF_MESSAGE
from kshare_upstream.fenced_log.fold import whole_batches
from kshare_upstream.partition_log import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from kshare_wire.record_reading import OpenedRecord, open_records

TOPIC_CONFIG = "errors.deadletterqueue.topic.name"
TOPICS_LIMIT = 50
PARTITIONS_LIMIT = 100
"""Of one topic; those with the lowest numbers are read."""
SCANNED_RECORDS = 2_000
"""Of one partition, from its end."""
SCANNED_BYTES = 4 * 1024 * 1024
"""Of one partition in one fetch."""
FETCHES_LIMIT = 8
OPENED_LIMIT_BYTES = 32 * 1024 * 1024
EXAMPLES = 5
AT_ONCE = 4
"""Partitions that are read at the same time."""
KEPT_S = 5.0


@dataclass(slots=True)
class Reason:
    """Dead letters of one group for one reason, in one topic."""

    group_id: str
    topic: str
    reason: str
    count: int = 0
    first_ms: int = 0
    last_ms: int = 0
    examples: list[Json] = field(default_factory=list)

    def add(self, letter: OpenedRecord, partition: int, source: Mapping[str, str]) -> None:
        self.count += 1
        self.first_ms = min(self.first_ms or letter.timestamp_ms, letter.timestamp_ms)
        self.last_ms = max(self.last_ms, letter.timestamp_ms)
        self.examples.append(
            {
                "topic": self.topic,
                "partition": partition,
                "offset": letter.offset,
                "time_ms": letter.timestamp_ms,
                "source_topic": source.get("topic"),
                "source_partition": number(source.get("partition")),
                "source_offset": number(source.get("offset")),
                "delivery_count": number(source.get("delivery.count")),
            }
        )
        self.examples = self.examples[-EXAMPLES:]


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
        groups = [group.group_id for group in await self._client.list_groups() if group.group_type.lower() == SHARE]
        configs = await self._client.configs(GROUP_CONFIGS, groups, [TOPIC_CONFIG]) if groups else {}
        found: dict[str, list[str]] = {}
        for group_id in groups:
            for entry in configs.get(group_id, ()):
                if entry.name == TOPIC_CONFIG and entry.value:
                    found.setdefault(entry.value, []).append(group_id)
        return found

    async def _read(self) -> Json:
        topics = await self.topics()
        reasons: dict[tuple[str, str, str], Reason] = {}
        problems: list[Json] = []
        is_partial = len(topics) > TOPICS_LIMIT
        limit = asyncio.Semaphore(AT_ONCE)
        for topic in sorted(topics)[:TOPICS_LIMIT]:
            try:
                described = await self._client.topic(topic)
                numbers = sorted(each.partition_index for each in described.partitions)
                is_partial |= len(numbers) > PARTITIONS_LIMIT
                wanted = numbers[:PARTITIONS_LIMIT]
                starts = await self._client.end_offsets(topic, wanted, EARLIEST_TIMESTAMP)
                ends = await self._client.end_offsets(topic, wanted, LATEST_TIMESTAMP)
                spans = {each: (starts.get(each, 0), ends[each]) for each in wanted if each in ends}
                is_partial |= any(end - start > SCANNED_RECORDS for start, end in spans.values())
                letters = await asyncio.gather(
                    *(self._newest(topic, each, start, end, limit) for each, (start, end) in spans.items())
                )
            except Refusal as problem:
                problems.append({"words": problem.words, "where": topic})
                continue
            for partition, of_partition in zip(spans, letters, strict=True):
                add_all(reasons, topic, partition, of_partition)
        items = sorted(reasons.values(), key=lambda each: (-each.count, each.group_id, each.reason))
        return {
            "items": [shown(each) for each in items],
            "is_partial": is_partial,
            "scanned_records_per_partition": SCANNED_RECORDS,
            "topics": [{"topic": topic, "groups": groups} for topic, groups in sorted(topics.items())],
            "problems": problems,
        }

    async def _newest(
        self, topic: str, partition: int, start: int, end: int, limit: asyncio.Semaphore
    ) -> list[OpenedRecord]:
        """The newest records of one partition, in order."""
        offset = max(start, end - SCANNED_RECORDS)
        first, found = offset, list[OpenedRecord]()
        async with limit, reading(f"reading {topic}-{partition}"):
            for _ in range(FETCHES_LIMIT):
                if offset >= end:
                    break
                records = await self._client.log(topic, partition).read(offset, max_bytes=SCANNED_BYTES)
                following = offset
                for header, data in whole_batches(records.data):
                    following = header.base_offset + header.last_offset_delta + 1
                    if not header.is_control:
                        found += open_records(data, limit_bytes=OPENED_LIMIT_BYTES)
                if following <= offset:
                    break
                offset = following
        return [each for each in found if each.offset >= first]


def add_all(
    reasons: dict[tuple[str, str, str], Reason], topic: str, partition: int, letters: Iterable[OpenedRecord]
) -> None:
    """Adds dead letters to their reasons; records without the headers of a dead letter are left out. Pure."""
    for letter in letters:
        source = context_of(letter.headers)
        if "group" not in source:
            continue
        text = source.get("message", "")
        reason = REASON_OF_MESSAGE.get(text, text or "unknown")
        key = (source["group"], topic, reason)
        if key not in reasons:
            reasons[key] = Reason(source["group"], topic, reason)
        reasons[key].add(letter, partition, source)


def context_of(headers: Sequence[tuple[str, bytes | None]]) -> dict[str, str]:
    """The headers of a dead letter without their prefix; the last of a name counts, as the others are the record's."""
    return {
        name.removeprefix(CONTEXT_PREFIX): raw.decode(errors="replace")
        for name, raw in headers
        if name.startswith(CONTEXT_PREFIX) and raw is not None
    }


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
        "examples": reason.examples[::-1],
    }
