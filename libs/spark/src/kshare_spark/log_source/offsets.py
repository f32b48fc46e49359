"""The offsets of a stream in Spark's checkpoint, and the size of a batch. Pure.

An offset is JSON: `{"orders": {"0": {"from": 5, "until": 20}}}` is the batch of offsets 5 to 19 of partition 0. Spark
knows the start of a batch from the batch before it. But the first batch has no predecessor, and with `latest` Spark
requests the initial offset again after a crash, when the log's end has moved. With both ends in the offset, a batch
reads the same records at every run. An offset of empty ranges only is the initial one, or one that only moved the
position within logs that became shorter.

A log that became shorter ends before the position. Its range then begins where the position was reset to, and ends
before the last position: so a repeated batch can tell it from a range that continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from kshare_kafka_client.range_reader import OffsetRange
from kshare_kafka_client.topics import Partition

FROM, UNTIL = "from", "until"


class InvalidOffset(ValueError):
    """An offset in the checkpoint was not written by this source."""


def encode_offset(ranges: Iterable[OffsetRange]) -> dict[str, Any]:
    """The offset of a batch with these ranges; topics and partitions ascend, so equal offsets are equal JSON."""
    found: dict[str, Any] = {}
    for asked in sorted(ranges):
        partitions = found.setdefault(asked.topic, {})
        partitions[str(asked.partition)] = {FROM: asked.first_offset, UNTIL: asked.end_offset}
    return found


def decode_offset(offset: Mapping[str, Any]) -> dict[Partition, OffsetRange]:
    """The inverse."""
    try:
        return {
            Partition(topic, int(number)): OffsetRange(topic, int(number), int(ends[FROM]), int(ends[UNTIL]))
            for topic, partitions in offset.items()
            for number, ends in partitions.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InvalidOffset(f"no offset of the format kshare-log: {str(offset)[:200]}") from None


def ranges_between(start: Mapping[str, Any], end: Mapping[str, Any]) -> list[OffsetRange]:
    """The non-empty ranges of the batch from `start` to `end`; none if both are equal."""
    if start == end:
        return []
    before = decode_offset(start)
    is_initial = all(found.first_offset == found.end_offset for found in before.values())
    ranges: list[OffsetRange] = []
    for partition, found in decode_offset(end).items():
        if not is_initial and partition in before and found.end_offset >= before[partition].end_offset:
            found = found._replace(first_offset=before[partition].end_offset)
        if found.first_offset < found.end_offset:
            ranges.append(found)
    return ranges


def next_offset(
    start: Mapping[str, Any],
    ends: Mapping[Partition, int],
    limit: int | None,
    *,
    resets: Mapping[Partition, int] | None = None,
) -> dict[str, Any]:
    """The offset of the batch after `start`, up to `ends` and of at most `limit` offsets; `start` if nothing is new.

    A partition missing in `start` is new and is read from offset 0. One missing in `ends` keeps its position. One whose
    log became shorter continues at its offset in `resets`, at most the log's end; without one it keeps its position.
    """
    firsts = {partition: found.end_offset for partition, found in decode_offset(start).items()}
    firsts = {**dict.fromkeys(ends, 0), **firsts, **(resets or {})}
    waiting = {partition: max(0, ends.get(partition, first) - first) for partition, first in firsts.items()}
    taken = shared_out(waiting, limit)
    if not resets and not any(taken.values()):
        return dict(start)
    return encode_offset(
        OffsetRange(partition.topic, partition.partition, first, first + taken[partition])
        for partition, first in firsts.items()
    )


def shared_out(waiting: Mapping[Partition, int], limit: int | None) -> dict[Partition, int]:
    """The number of offsets to read from each partition, in proportion to its backlog, `limit` in total.

    The remainder of rounding goes to the largest fractions, and among equals to the longest backlog. So with a small
    limit no partition starves, because its backlog grows.
    """
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return dict(waiting)
    taken = {partition: count * limit // total for partition, count in waiting.items()}
    left = limit - sum(taken.values())
    by_fraction = sorted(waiting, key=lambda place: (-(waiting[place] * limit % total), -waiting[place], place))
    for partition in by_fraction[:left]:
        taken[partition] += 1
    return taken


def split(ranges: Iterable[OffsetRange], min_partitions: int) -> list[OffsetRange]:
    """The same offsets in at least `min_partitions` ranges of similar length, if there are enough offsets."""
    found = list(ranges)
    total = sum(one.end_offset - one.first_offset for one in found)
    if len(found) >= min_partitions or total == 0:
        return found
    pieces: list[OffsetRange] = []
    for one in found:
        length = one.end_offset - one.first_offset
        count = max(1, min(length, -(-length * min_partitions // total)))
        marks = [one.first_offset + length * index // count for index in range(count + 1)]
        pieces.extend(one._replace(first_offset=low, end_offset=high) for low, high in pairwise(marks))
    return pieces
