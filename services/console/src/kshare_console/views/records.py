"""One record, as text, JSON and hex, cut at a limit: what a person looks at to understand why workers fail."""

from __future__ import annotations

import json

from kshare_console.cluster_client import ClusterClient, reading
from kshare_console.refusal import Refusal, not_found
from kshare_console.views.paging import Json
from kshare_core.errors import KafkaError
from kshare_upstream.fenced_log.fold import whole_batches
from kshare_wire.record_reading import OpenedRecord, TooManyHeaders, open_window

SHOWN_BYTES = 64 * 1024
HEADERS_LIMIT = 200
FETCH_BYTES = 2 * 1024 * 1024
OPENED_LIMIT_BYTES = 32 * 1024 * 1024
"""A batch that decompresses to more is not opened."""


async def record(client: ClusterClient, topic: str, partition: int, offset: int) -> Json:
    """The record; Refusal 404 if the log has none at the offset (compaction, a marker, retention)."""
    described = await client.topic(topic)
    if partition not in {each.partition_index for each in described.partitions}:
        raise not_found(f"topic {topic} has no partition {partition}")
    async with reading(f"reading {topic}-{partition} at offset {offset}"):
        records = await client.log(topic, partition).read(offset, max_bytes=FETCH_BYTES)
    for header, data in whole_batches(records.data):
        if header.base_offset + header.last_offset_delta < offset:
            continue
        if header.base_offset > offset or header.is_control:
            break
        try:
            opened = open_window(data, offset, 1, limit_bytes=OPENED_LIMIT_BYTES)
        except TooManyHeaders as error:
            if error.offset != offset:
                break
            raise _not_shown(error) from None
        except KafkaError as error:
            raise _not_shown(error) from None
        for found in opened:
            if found.offset == offset:
                return shown(topic, partition, found)
        break
    raise not_found(
        f"{topic}-{partition} has no record at offset {offset}: it is a marker, or was removed or compacted"
    )


def _not_shown(error: KafkaError) -> Refusal:
    return Refusal(422, error.code.name, f"the console does not show the record: {error.message}")


def shown(topic: str, partition: int, found: OpenedRecord) -> Json:
    """The JSON of a record. Pure."""
    headers = found.headers[:HEADERS_LIMIT]
    size = len(found.key or b"") + len(found.value or b"")
    return {
        "topic": topic,
        "partition": partition,
        "offset": found.offset,
        "timestamp_ms": found.timestamp_ms,
        "key": value(found.key),
        "value": value(found.value),
        "headers": [{"name": name, "value": value(raw)} for name, raw in headers],
        "headers_left_out": len(found.headers) - len(headers),
        "size_bytes": size + sum(len(name.encode()) + len(raw or b"") for name, raw in found.headers),
    }


def value(raw: bytes | None) -> Json | None:
    """Bytes as text where they are UTF-8, and as hex; both are cut after SHOWN_BYTES."""
    if raw is None:
        return None
    cut = raw[:SHOWN_BYTES]
    text = _text(cut, is_cut=len(raw) > SHOWN_BYTES)
    return {
        "text": text,
        "json": text is not None and len(raw) <= SHOWN_BYTES and _is_json(text),
        "hex": cut.hex(),
        "size_bytes": len(raw),
        "truncated": len(raw) > SHOWN_BYTES,
    }


def _text(cut: bytes, *, is_cut: bool) -> str | None:
    """None for bytes that are not UTF-8; a character that the cut divides is left out."""
    for end in range(len(cut), max(len(cut) - (4 if is_cut else 1), -1), -1):
        try:
            return cut[:end].decode()
        except UnicodeDecodeError:
            continue
    return None


def _is_json(text: str) -> bool:
    """Whether the text is a JSON object or array; numbers and words are shown as text."""
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
