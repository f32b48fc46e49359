"""The appended dead letters of a source in a dead-letter partition, which make appends idempotent.

A row belongs to a destination partition and a source (topic id, partition, group). It has the source's start offset,
below which no dead letter is sent again, and the runs of offsets above it that were appended. It is written atomically
with the records, so the two cannot differ after a crash. A new state epoch (an administrator's new start offset) begins
a new row; a request of an older epoch is refused. Pure: no clock, no store.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TOPIC_ID_LENGTH, SharePartitionKey, TopicPartition
from kshare_leader.dead_letters.letters import OffsetRun
from kshare_leader.log import keys
from kshare_leader.share.start_offset import NOT_TRUNCATED, Truncation

_FIXED = struct.Struct(">iqqi")
_FIXED_BEFORE_TRUNCATIONS = struct.Struct(">iqq")
_RUN = struct.Struct(">qq")
_NUMBER_LENGTH = 4


class AppendedOffsets(NamedTuple):
    """The row of one source. `runs` ascend, do not touch, and begin at `start_offset` or later; times are wall time."""

    state_epoch: int
    start_offset: int
    last_append_ms: int
    runs: tuple[OffsetRun, ...]
    truncation_leader_epoch: int = 0
    """The leader epoch of the source's newest truncation that `runs` reflect; 0: none."""

    def cut_at(self, truncation: Truncation) -> AppendedOffsets:
        """The row truncated for a source whose log has other records from an offset on."""
        kept = [
            OffsetRun(first, min(last, truncation.offset - 1)) for first, last in self.runs if first < truncation.offset
        ]
        start_offset = min(self.start_offset, truncation.offset)
        return self._replace(
            start_offset=start_offset, runs=tuple(kept), truncation_leader_epoch=truncation.leader_epoch
        )

    def appended(self, asked: Iterable[OffsetRun]) -> list[OffsetRun]:
        """The part of `asked`, which ascends, that is already appended or lies below the source's start offset."""
        found: list[OffsetRun] = []
        for first, last in asked:
            if first < self.start_offset:
                found.append(OffsetRun(first, min(last, self.start_offset - 1)))
            for index in range(bisect_left(self.runs, first, key=_last_offset), len(self.runs)):
                run = self.runs[index]
                if run.first_offset > last:
                    break
                found.append(OffsetRun(max(first, run.first_offset), min(last, run.last_offset)))
        return found

    def after(self, start_offset: int, appended: Sequence[OffsetRun], now_ms: int) -> AppendedOffsets:
        """The row once `appended` are in the log, for a source that now starts at `start_offset`."""
        start_offset = max(start_offset, self.start_offset)
        joined: list[OffsetRun] = []
        for run in sorted((*self.runs, *appended)):
            if run.last_offset < start_offset:
                continue
            run = OffsetRun(max(run.first_offset, start_offset), run.last_offset)
            if joined and run.first_offset <= joined[-1].last_offset + 1:
                joined[-1] = OffsetRun(joined[-1].first_offset, max(joined[-1].last_offset, run.last_offset))
            else:
                joined.append(run)
        return self._replace(start_offset=start_offset, last_append_ms=now_ms, runs=tuple(joined))


def _last_offset(run: OffsetRun) -> int:
    return run.last_offset


def row_of_epoch(
    row: AppendedOffsets | None, state_epoch: int, truncation: Truncation = NOT_TRUNCATED
) -> AppendedOffsets:
    """The row to check a request of `state_epoch` against; KafkaError FENCED_STATE_EPOCH for an older epoch."""
    if row is None or row.state_epoch < state_epoch:
        return AppendedOffsets(state_epoch, 0, 0, (), truncation.leader_epoch)
    if row.state_epoch > state_epoch:
        text = f"state epoch {state_epoch} is older than {row.state_epoch}, that of dead letters appended before"
        raise KafkaError(ErrorCode.FENCED_STATE_EPOCH, text)
    if row.truncation_leader_epoch < truncation.leader_epoch:
        return row.cut_at(truncation)
    if row.truncation_leader_epoch > truncation.leader_epoch:
        text = f"the source was cut in leader epoch {row.truncation_leader_epoch}, which the sender does not know"
        raise KafkaError(ErrorCode.FENCED_STATE_EPOCH, text)
    return row


def row_key(destination: TopicPartition, source: SharePartitionKey) -> bytes:
    """The key of the row in the family keys.DEAD_LETTERS."""
    return keys.partition_prefix(destination) + keys.partition_prefix(source.topic_partition) + source.group_id.encode()


def parse_row_key(key: bytes) -> tuple[TopicPartition, SharePartitionKey]:
    """The inverse of `row_key`."""
    step = TOPIC_ID_LENGTH + _NUMBER_LENGTH
    destination, source = _parse_partition(key[:step]), _parse_partition(key[step : 2 * step])
    return destination, SharePartitionKey(key[2 * step :].decode(), source.topic_id, source.partition)


def _parse_partition(prefix: bytes) -> TopicPartition:
    return TopicPartition(prefix[:TOPIC_ID_LENGTH], int.from_bytes(prefix[TOPIC_ID_LENGTH:], "big"))


def encode_row(row: AppendedOffsets) -> bytes:
    """State epoch (4 bytes), start offset (8), time of the last append (8), leader epoch of the newest truncation (4);
    for each run its offsets (8 each). Rows of older versions have no truncation, which their length shows."""
    fixed = _FIXED.pack(row.state_epoch, row.start_offset, row.last_append_ms, row.truncation_leader_epoch)
    return fixed + b"".join([_RUN.pack(*run) for run in row.runs])


def decode_row(value: bytes) -> AppendedOffsets:
    """The inverse of `encode_row`; raises struct.error for malformed bytes."""
    fixed = _FIXED if len(value) % _RUN.size == _FIXED.size % _RUN.size else _FIXED_BEFORE_TRUNCATIONS
    state_epoch, start_offset, last_append_ms, *truncation = fixed.unpack_from(value)
    runs = tuple(OffsetRun(*fields) for fields in _RUN.iter_unpack(value[fixed.size :]))
    return AppendedOffsets(state_epoch, start_offset, last_append_ms, runs, *truncation)
