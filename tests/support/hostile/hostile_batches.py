"""Record batches that no producer sends, drawn by chance: their headers, their records and their compression.

Most have a right CRC, so that the checks behind it are reached. Bombs are made once: each decompresses to 16 to 64 MB.
"""

from __future__ import annotations

import random
import time
from functools import cache

from support.wire.raw_batches import CODECS, compressed, plain_batch, raw_batch, record

INT32 = (0, 1, 2, -1, -2, 2**31 - 1, -(2**31))
INT64 = (0, 1, -1, -2, 2**63 - 1, -(2**63), 1_700_000_000_000)
DELTAS = (0, 1, 2, -1, 5, 2**31 - 1, -(2**31), 2**62)
LENGTHS = (-1, -2, 0, 1, 4, 6, 1000, 2**31 - 1, -(2**31))
BOMB_BYTES = 16 << 20
START_MS = time.time_ns() // 1_000_000
"""The time of fresh records: always the same in a process, so that a seed that is drawn again gives the same bytes."""
GOOD, BAD_RECORDS, BAD_HEADER, DAMAGED, BOMB = range(5)


def draw_records(source: random.Random) -> bytes:
    """The bytes of a field of records."""
    kind = source.choices((GOOD, BAD_RECORDS, BAD_HEADER, DAMAGED, BOMB), (30, 25, 25, 18, 0.3))[0]
    codec = source.choice(CODECS)
    if kind == GOOD:
        return good_batch(source, codec)
    if kind == BAD_RECORDS:
        count = source.choice((1, 2, 3))
        records = b"".join(_bad_record(source, delta) for delta in range(count))
        return plain_batch(records, codec=codec, count=count, first_timestamp_ms=_now_ms(source))
    if kind == BAD_HEADER:
        return _bad_header(source, codec)
    if kind == BOMB:
        return source.choice(bombs())
    return _damaged(source, good_batch(source, codec))


def good_batch(source: random.Random, codec: str) -> bytes:
    count = source.choice((1, 1, 2, 10))
    value = source.choice((b"", b"value", None, source.randbytes(300)))
    records = b"".join(record(delta, value=value, headers=((b"h", b"1"),)) for delta in range(count))
    return plain_batch(records, codec=codec, count=count, first_timestamp_ms=_now_ms(source))


@cache
def bombs() -> tuple[bytes, ...]:
    """One for each codec and shape: one huge record, and very many records."""
    huge = record(0, value=bytes(BOMB_BYTES))
    many = record(0, key=b"k", value=None) * (BOMB_BYTES // 32)
    found = []
    for codec in CODECS[1:]:
        for data, count in ((huge, 1), (many, BOMB_BYTES // 32), (huge * 4, 4)):
            batch = plain_batch(data, codec=codec, count=count, first_timestamp_ms=START_MS)
            if len(batch) < 1_000_000:
                found.append(batch)
    return tuple(found)


def _now_ms(source: random.Random) -> int:
    if source.random() < 0.8:
        return START_MS
    return source.choice(INT64)


def _bad_record(source: random.Random, delta: int) -> bytes:
    chance = source.randrange(8)
    if chance == 0:
        return record(delta, length_added=source.choice((1, -1, 1000, -5, 2**31 - 1)))
    if chance == 1:
        return record(source.choice(DELTAS))
    if chance == 2:
        return record(delta, timestamp_delta=source.choice(INT64))
    if chance == 3:
        return record(delta, key_length=source.choice(LENGTHS))
    if chance == 4:
        return record(delta, value_length=source.choice(LENGTHS))
    if chance == 5:
        return record(delta, header_count=source.choice(INT32))
    if chance == 6:
        return record(delta, headers=((None, b"1"), (b"\xff", None)), after=b"xx")
    return source.randbytes(source.randrange(40))


def _bad_header(source: random.Random, codec: str) -> bytes:
    records = record(0) + record(1)
    fields = {"count": 2, "last_offset_delta": 1, "first_timestamp_ms": _now_ms(source)}
    for _ in range(source.choice((1, 1, 2))):
        name = source.choice(
            (
                *("count", "last_offset_delta", "extra_attributes", "base_offset", "leader_epoch", "magic"),
                *("crc_added", "length_added", "max_timestamp_ms", "producer_id", "producer_epoch", "base_sequence"),
            )
        )
        if name == "magic":
            fields[name] = source.choice((0, 1, 3, 127, -1))
        elif name == "extra_attributes":
            fields[name] = source.choice((0x08, 0x10, 0x20, 0x30, 0x40, 0x07, 0x7F00))
        elif name == "producer_epoch":
            fields[name] = source.choice((0, 1, -2, 2**15 - 1, -(2**15)))
        elif name in ("base_offset", "max_timestamp_ms", "producer_id"):
            fields[name] = source.choice(INT64)
        elif name in ("crc_added", "length_added"):
            fields[name] = source.choice((1, -1, 20, 1000))
        else:
            fields[name] = source.choice(INT32)
    return raw_batch(compressed(records, codec), codec=codec, **fields)


def _damaged(source: random.Random, batch: bytes) -> bytes:
    """Cut off, longer, with flipped bits, several, or no batch at all."""
    chance = source.randrange(6)
    if chance == 0:
        return batch[: source.randrange(len(batch))]
    if chance == 1:
        return batch + source.randbytes(source.randrange(1, 80))
    if chance == 2:
        return source.randbytes(source.randrange(200))
    if chance == 3:
        return batch + good_batch(source, source.choice(CODECS))
    changed = bytearray(batch)
    for _ in range(source.choice((1, 2, 8))):
        changed[source.randrange(len(changed))] ^= 1 << source.randrange(8)
    if chance == 4:
        return bytes(changed)
    return bytes(changed[:61]) + source.randbytes(source.randrange(60))
