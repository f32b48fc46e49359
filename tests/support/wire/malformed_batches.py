"""A table of record batches that no client should send: the mistakes of a producer, for each codec.

Each one goes to a topic of a kind: `plain`, `compacted`, `append-time` (message.timestamp.type), `bounded`
(message.timestamp.before.max.ms and message.timestamp.after.max.ms of an hour).
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from typing import NamedTuple

import cramjam

from support.wire.raw_batches import CODECS, compressed, lz4_frame, plain_batch, raw_batch, record, varint

PLAIN, COMPACTED, APPEND_TIME, BOUNDED = "plain", "compacted", "append-time", "bounded"
HOUR_MS = 3_600_000
MAX_INT = (1 << 31) - 1
TOPIC_CONFIGS = {
    PLAIN: {},
    COMPACTED: {"cleanup.policy": "compact"},
    APPEND_TIME: {"message.timestamp.type": "LogAppendTime"},
    BOUNDED: {
        "message.timestamp.before.max.ms": str(HOUR_MS),
        "message.timestamp.after.max.ms": str(HOUR_MS),
    },
}
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40


class Case(NamedTuple):
    """Bytes of one partition in a Produce request."""

    name: str
    topic: str
    records: bytes


def three(**changes: int) -> bytes:
    """Three records at offset deltas 0, 1 and 2."""
    return b"".join(record(delta, **changes) for delta in range(3))  # type: ignore[arg-type]


def cases(now_ms: int) -> Iterator[Case]:
    """The whole table; times count from `now_ms`."""
    yield from _headers(now_ms)
    yield from _framing(now_ms)
    for codec in CODECS:
        for name, records, fields in _contents():
            batch = plain_batch(records, codec=codec, **{"first_timestamp_ms": now_ms, **fields})
            yield Case(f"{codec}: {name}", PLAIN, batch)
        for case in [*_keys(now_ms, codec), *_times(now_ms, codec)]:
            yield case._replace(name=f"{codec}: {case.name}")
    yield from _damaged_compression(now_ms)


_Content = tuple[str, bytes, dict[str, int]]
"""A name, records before compression, and fields of the header that differ."""


def _contents() -> Iterator[_Content]:
    yield from _lengths(three())
    yield from _counts(three())
    yield from _fields()
    yield from _offset_deltas()


def _lengths(good: bytes) -> Iterator[_Content]:
    yield "good", good, {"count": 3}
    yield "null value, empty key", record(0, key=b"", value=None), {}
    yield "headers", record(0, headers=[(b"a", b"1"), (b"", None)]), {}
    yield "first record longer than the batch", record(0, length_added=1000) + record(1) + record(2), {"count": 3}
    yield "first record longer by one", record(0, length_added=1) + record(1) + record(2), {"count": 3}
    yield "first record shorter by one", record(0, length_added=-1) + record(1) + record(2), {"count": 3}
    yield "last record longer by one", record(0) + record(1) + record(2, length_added=1), {"count": 3}
    yield "last record shorter by one", record(0) + record(1) + record(2, length_added=-1), {"count": 3}
    yield "record with length 0", b"\0" + record(1), {"count": 2}
    yield "record with length -1", varint(-1) + record(1), {"count": 2}
    yield "record with the smallest length", varint(-(1 << 31)) + record(1), {"count": 2}
    yield "length of six bytes", b"\xff\xff\xff\xff\xff\x01" + good, {"count": 3}
    yield "length of five bytes, above 32 bits", b"\xff\xff\xff\xff\x7f" + good, {"count": 3}
    yield "length written with more bytes than needed", _overlong(record(0)), {}
    yield "bytes after the headers of a record", record(0, after=b"xx"), {}


def _counts(good: bytes) -> Iterator[_Content]:
    yield "count higher by one", good, {"count": 4}
    yield "count lower by one", good, {"count": 2}
    yield "count higher, last offset delta right", good, {"count": 4, "last_offset_delta": 2}
    yield "count lower, last offset delta right", good, {"count": 2, "last_offset_delta": 2}
    yield "count of all", good, {"count": MAX_INT}
    yield "count of all, last offset delta right", good, {"count": MAX_INT, "last_offset_delta": 2}
    yield "count -1", good, {"count": -1}
    yield "count 0", good, {"count": 0}
    yield "count 0, last offset delta 0", good, {"count": 0, "last_offset_delta": 0}
    yield "no records, count 0", b"", {"count": 0}
    yield "no records, count 1", b"", {"count": 1}
    yield "last offset delta too low", good, {"count": 3, "last_offset_delta": 1}
    yield "last offset delta too high", good, {"count": 3, "last_offset_delta": 3}
    yield "last offset delta of all", good, {"count": 3, "last_offset_delta": MAX_INT}
    yield "last offset delta negative", good, {"count": 3, "last_offset_delta": -1}
    yield "trailing byte", good + b"\0", {"count": 3}
    yield "trailing record", good + record(3), {"count": 3}


def _fields() -> Iterator[_Content]:
    yield "key longer than the batch", record(0, key_length=1000), {}
    yield "key shorter", record(0, key_length=2), {}
    yield "key length -2", record(0, key=None, key_length=-2), {}
    yield "key length the smallest", record(0, key=None, key_length=-(1 << 31)), {}
    yield "key length the greatest", record(0, key_length=MAX_INT), {}
    yield "value length the greatest", record(0, value_length=MAX_INT), {}
    yield "value length -2", record(0, value=None, value_length=-2), {}
    yield "value longer by one", record(0, value_length=6), {}
    yield "header count negative", record(0, header_count=-1), {}
    yield "header count one, none there", record(0, header_count=1), {}
    yield "header count absurd", record(0, header_count=MAX_INT), {}
    yield "header count lower", record(0, headers=[(b"a", b"1")], header_count=0), {}
    yield "header key null", record(0, headers=[(None, b"1")]), {}
    yield "header key longer than the record", record(0, header_count=1, after=varint(100) + b"a" + varint(0)), {}
    yield "header value longer than the record", record(0, header_count=1, after=varint(1) + b"a" + varint(100)), {}
    yield "header value length -2", record(0, header_count=1, after=varint(1) + b"a" + varint(-2)), {}
    yield "header key no UTF-8", record(0, headers=[(b"\xff\xfe", b"1")]), {}
    yield "record attributes set", _with_attributes(record(0), 0x7F), {}
    yield "timestamp delta of eleven bytes", _with_timestamp(b"\xff" * 10 + b"\x01"), {}


def _offset_deltas() -> Iterator[_Content]:
    yield "offset deltas the other way", record(2) + record(1) + record(0), {"count": 3}
    yield "offset deltas all 0", record(0) + record(0) + record(0), {"count": 3}
    yield "offset deltas with gaps", record(0) + record(5) + record(9), {"count": 3}
    yield (
        "offset deltas with gaps and their last",
        record(0) + record(5) + record(9),
        {"count": 3, "last_offset_delta": 9},
    )
    yield "offset delta negative", record(-1), {}
    yield "offset delta the greatest", record(MAX_INT), {}


def _overlong(data: bytes) -> bytes:
    assert data[0] < 0x80
    return bytes([data[0] | 0x80, 0]) + data[1:]


def _with_attributes(data: bytes, attributes: int) -> bytes:
    return data[:1] + bytes([attributes]) + data[2:]


def _with_timestamp(encoded: bytes) -> bytes:
    body = b"\0" + encoded + varint(0) + varint(-1) + varint(-1) + varint(0)
    return varint(len(body)) + body


def _keys(now_ms: int, codec: str) -> Iterator[Case]:
    def batch(records: bytes, count: int) -> bytes:
        return plain_batch(records, codec=codec, count=count, first_timestamp_ms=now_ms)

    yield Case("keys on a compacted topic", COMPACTED, batch(three(), 3))
    yield Case("no key on a compacted topic", COMPACTED, batch(record(0, key=None), 1))
    mixed = record(0, key=None) + record(1) + record(2, key=None)
    yield Case("two of three without a key on a compacted topic", COMPACTED, batch(mixed, 3))
    yield Case("an empty key on a compacted topic", COMPACTED, batch(record(0, key=b""), 1))
    broken = record(0, key=None) + record(1, length_added=1)
    yield Case("no key, then a broken record", COMPACTED, batch(broken, 2))


def _times(now_ms: int, codec: str) -> Iterator[Case]:
    def batch(records: bytes, count: int = 1, **fields: int) -> bytes:
        return plain_batch(records, codec=codec, count=count, **{"first_timestamp_ms": now_ms, **fields})

    old_ms, ahead_ms = now_ms - 2 * HOUR_MS, now_ms + 2 * HOUR_MS
    yield Case("times within the bounds", BOUNDED, batch(three(timestamp_delta=1), 3, max_timestamp_ms=now_ms + 1))
    yield Case("too old", BOUNDED, batch(record(0), first_timestamp_ms=old_ms))
    yield Case("too far ahead", BOUNDED, batch(record(0), first_timestamp_ms=ahead_ms))
    later = record(0) + record(1, timestamp_delta=2 * HOUR_MS) + record(2)
    yield Case("the second too far ahead, the header tells", BOUNDED, batch(later, 3, max_timestamp_ms=ahead_ms))
    yield Case("the second too far ahead, the header hides it", BOUNDED, batch(later, 3))
    earlier = record(0) + record(1, timestamp_delta=-2 * HOUR_MS) + record(2)
    yield Case("the second too old, the header hides it", BOUNDED, batch(earlier, 3))
    both = record(0, timestamp_delta=2 * HOUR_MS) + record(1, timestamp_delta=-2 * HOUR_MS)
    yield Case("both wrong", BOUNDED, batch(both, 2))
    yield Case("header too far ahead, records are not", BOUNDED, batch(record(0), max_timestamp_ms=ahead_ms))
    yield Case(
        "first of the header too old, record is not",
        BOUNDED,
        batch(record(0, timestamp_delta=2 * HOUR_MS), first_timestamp_ms=old_ms),
    )
    yield Case("no timestamp", BOUNDED, batch(record(0), first_timestamp_ms=-1))
    yield Case("negative timestamp", BOUNDED, batch(record(0), first_timestamp_ms=-5))
    yield Case(
        "times that add up to more than 64 bits",
        BOUNDED,
        batch(record(0, timestamp_delta=1), first_timestamp_ms=(1 << 63) - 1),
    )
    yield Case("header says another newest time", PLAIN, batch(three(), 3, max_timestamp_ms=now_ms + 77))
    yield Case("log append time set by the client", PLAIN, batch(record(0), extra_attributes=LOG_APPEND_TIME))
    yield Case(
        "log append time set by the client, too old",
        BOUNDED,
        batch(record(0), extra_attributes=LOG_APPEND_TIME, first_timestamp_ms=old_ms, max_timestamp_ms=old_ms),
    )
    yield Case(
        "log append time set by the client, no time",
        PLAIN,
        batch(record(0), extra_attributes=LOG_APPEND_TIME, first_timestamp_ms=-1, max_timestamp_ms=-1),
    )
    yield Case("create time", APPEND_TIME, batch(record(0)))
    yield Case("create time too old", APPEND_TIME, batch(record(0), first_timestamp_ms=old_ms))
    yield Case(
        "log append time set where the topic has it", APPEND_TIME, batch(record(0), extra_attributes=LOG_APPEND_TIME)
    )
    yield Case("broken record", APPEND_TIME, batch(record(0, length_added=1)))


def _headers(now_ms: int) -> Iterator[Case]:
    def batch(**fields: int) -> bytes:
        return plain_batch(record(0), codec="none", **{"first_timestamp_ms": now_ms, **fields})

    yield Case("wrong CRC", PLAIN, batch(crc_added=1))
    yield Case("wrong CRC and count 0", PLAIN, batch(crc_added=1, count=0))
    yield Case("base offset 7", PLAIN, batch(base_offset=7))
    yield Case("base offset -1", PLAIN, batch(base_offset=-1))
    yield Case("wrong CRC and base offset 7", PLAIN, batch(base_offset=7, crc_added=1))
    yield Case("leader epoch 5", PLAIN, batch(leader_epoch=5))
    for magic in (0, 1, 3, 127, -1):
        yield Case(f"magic {magic}", PLAIN, batch(magic=magic))
    for number in (5, 6, 7):
        yield Case(f"codec {number}", PLAIN, raw_batch(record(0), attributes=number, first_timestamp_ms=now_ms))
    yield Case("unused attributes", PLAIN, batch(extra_attributes=0x7F00))
    yield Case("delete horizon", PLAIN, batch(extra_attributes=DELETE_HORIZON))
    yield Case("control", PLAIN, batch(extra_attributes=CONTROL))
    yield Case(
        "control, transactional",
        PLAIN,
        batch(extra_attributes=CONTROL | TRANSACTIONAL, producer_id=7001, producer_epoch=0, base_sequence=0),
    )
    yield Case("transactional without a producer id", PLAIN, batch(extra_attributes=TRANSACTIONAL))
    yield Case("producer id without a sequence", PLAIN, batch(producer_id=7002, producer_epoch=0))
    yield Case("producer id without an epoch", PLAIN, batch(producer_id=7003, base_sequence=0))
    yield Case("sequence without a producer id", PLAIN, batch(base_sequence=4))
    yield Case("epoch without a producer id", PLAIN, batch(producer_epoch=4))
    yield Case("producer id -2", PLAIN, batch(producer_id=-2, producer_epoch=0, base_sequence=0))
    yield Case("first sequence 5", PLAIN, batch(producer_id=7004, producer_epoch=0, base_sequence=5))
    yield Case("producer's first", PLAIN, batch(producer_id=7005, producer_epoch=0, base_sequence=0))
    yield Case("producer's first again", PLAIN, batch(producer_id=7005, producer_epoch=0, base_sequence=0))
    broken = plain_batch(
        record(0, length_added=1), first_timestamp_ms=now_ms, producer_id=7005, producer_epoch=0, base_sequence=0
    )
    yield Case("producer's first again, broken", PLAIN, broken)
    yield Case("producer's third", PLAIN, batch(producer_id=7005, producer_epoch=0, base_sequence=2))
    broken = plain_batch(
        record(0, length_added=1), first_timestamp_ms=now_ms, producer_id=7005, producer_epoch=0, base_sequence=2
    )
    yield Case("producer's third, broken", PLAIN, broken)


def _framing(now_ms: int) -> Iterator[Case]:
    good = plain_batch(record(0), first_timestamp_ms=now_ms)
    large = plain_batch(record(0, value=b"x" * 1_100_000), first_timestamp_ms=now_ms)
    yield Case("nothing", PLAIN, b"")
    yield Case("one byte", PLAIN, b"\0")
    yield Case("16 bytes", PLAIN, good[:16])
    yield Case("17 bytes", PLAIN, good[:17])
    yield Case("a header cut off", PLAIN, good[:40])
    yield Case("a header alone", PLAIN, good[:61])
    yield Case("cut off by three bytes", PLAIN, good[:-3])
    yield Case("three bytes more", PLAIN, good + b"\0\0\0")
    yield Case("twenty bytes more", PLAIN, good + b"\0" * 20)
    yield Case("two batches", PLAIN, good + good)
    yield Case("two batches, the second broken", PLAIN, good + good[:-1] + b"x")
    yield Case("length of the batch 0", PLAIN, struct.pack(">qi", 0, 0) + good[12:])
    yield Case("length of the batch 20", PLAIN, struct.pack(">qi", 0, 20) + good[12:])
    yield Case("length of the batch negative", PLAIN, struct.pack(">qi", 0, -5) + good[12:])
    yield Case("length of the batch higher", PLAIN, plain_batch(record(0), first_timestamp_ms=now_ms, length_added=1))
    yield Case("length of the batch lower", PLAIN, plain_batch(record(0), first_timestamp_ms=now_ms, length_added=-1))
    yield Case("larger than max.message.bytes", PLAIN, large)
    yield Case("larger than max.message.bytes, wrong CRC", PLAIN, large[:-1] + b"z")


def _damaged_compression(now_ms: int) -> Iterator[Case]:
    def batch(codec: str, data: bytes, count: int = 3, **fields: int) -> bytes:
        return raw_batch(data, codec=codec, count=count, **{"first_timestamp_ms": now_ms, **fields})

    many = b"".join(record(delta, value=b"value %d" % delta * 20) for delta in range(2000))
    for codec in CODECS[1:]:
        whole, whole_many = compressed(three(), codec), compressed(many, codec)
        yield Case(f"{codec}: empty bytes", PLAIN, batch(codec, b""))
        yield Case(f"{codec}: garbage", PLAIN, batch(codec, b"garbage that no codec ever wrote"))
        yield Case(f"{codec}: records that are not compressed", PLAIN, batch(codec, three()))
        yield Case(f"{codec}: cut off in the middle", PLAIN, batch(codec, whole[: len(whole) // 2]))
        yield Case(f"{codec}: cut off at the end", PLAIN, batch(codec, whole[:-1]))
        yield Case(
            f"{codec}: many, cut off in the middle", PLAIN, batch(codec, whole_many[: len(whole_many) // 2], 2000)
        )
        flipped = bytearray(whole_many)
        flipped[len(flipped) // 2] ^= 0xFF
        yield Case(f"{codec}: many, a byte flipped", PLAIN, batch(codec, bytes(flipped), 2000))
        yield Case(f"{codec}: garbage after it", PLAIN, batch(codec, whole + b"garbage"))
        yield Case(f"{codec}: zeros after it", PLAIN, batch(codec, whole + b"\0" * 32))
        two = compressed(record(0), codec) + compressed(record(1) + record(2), codec)
        yield Case(f"{codec}: two streams", PLAIN, batch(codec, two))
        for other in CODECS[1:]:
            if other != codec:
                yield Case(f"{codec}: compressed with {other}", PLAIN, batch(codec, compressed(three(), other)))
    yield Case("snappy: without xerial's frames", PLAIN, batch("snappy", bytes(cramjam.snappy.compress_raw(three()))))
    yield Case("snappy: the framing format", PLAIN, batch("snappy", bytes(cramjam.snappy.compress(three()))))
    yield Case("lz4: dependent blocks", PLAIN, batch("lz4", lz4_frame(three(), independent_blocks=False)))
    yield Case("lz4: header checksum wrong", PLAIN, batch("lz4", _flip(lz4_frame(three()), 6)))
    yield Case("gzip: checksum wrong", PLAIN, batch("gzip", _flip(gzip.compress(three()), -6)))
    yield Case("gzip: length wrong", PLAIN, batch("gzip", _flip(gzip.compress(three()), -2)))


def _flip(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 0xFF
    return bytes(changed)
