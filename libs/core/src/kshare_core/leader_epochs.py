"""The leader epoch history of a log: the start offset of each leader epoch (Kafka's LeaderEpochFileCache).

A record is identified by its leader epoch and its offset, because an epoch belongs to one leader that opened one log
once (KIP-101, KIP-320). So two histories determine up to which offset two copies of a log have the same records:
`common_end_offset`. The share coordinator stores the history with a share-partition's state, and the leader compares
it with that of its log: a log whose disk was lost, or is older than the state, has other records from there on.

An encoded entry has 12 bytes (int32 leader epoch, int64 start offset, big endian); entries ascend. Empty: not known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from struct import Struct
from typing import NamedTuple

LEADER_EPOCHS_LIMIT = 32
"""The number of entries stored with a share-partition's state: the newest ones."""
UNKNOWN_LEADER_EPOCH = -1

_ENTRY = Struct(">iq")
_EPOCH = Struct(">i")
_LEADER_EPOCH = attrgetter("leader_epoch")
_START_OFFSET = attrgetter("start_offset")


class EpochEntry(NamedTuple):
    """`leader_epoch` wrote the records from `start_offset` to the next entry's start offset."""

    leader_epoch: int
    start_offset: int


def encode_leader_epochs(entries: Sequence[EpochEntry]) -> bytes:
    """The newest LEADER_EPOCHS_LIMIT entries."""
    return b"".join([_ENTRY.pack(*entry) for entry in entries[-LEADER_EPOCHS_LIMIT:]])


def decode_leader_epochs(data: bytes) -> list[EpochEntry]:
    """The inverse of `encode_leader_epochs`; ValueError if the bytes are no history."""
    if len(data) % _ENTRY.size or len(data) > LEADER_EPOCHS_LIMIT * _ENTRY.size:
        raise ValueError(f"a leader epoch history of {len(data)} bytes")
    entries = [EpochEntry(*fields) for fields in _ENTRY.iter_unpack(data)]
    previous = EpochEntry(-1, 0)
    for entry in entries:
        if entry.leader_epoch <= previous.leader_epoch or entry.start_offset < previous.start_offset:
            raise ValueError(f"a leader epoch history in which {entry} follows {previous}")
        previous = entry
    return entries


def newest_leader_epoch(data: bytes) -> int:
    """The newest leader epoch of an encoded history; -1 if it is not known."""
    if not data:
        return UNKNOWN_LEADER_EPOCH
    (leader_epoch,) = _EPOCH.unpack_from(data, len(data) - _ENTRY.size)
    return int(leader_epoch)


def common_end_offset(known: Sequence[EpochEntry], log: Sequence[EpochEntry], log_end_offset: int) -> int:
    """The end offset (exclusive) of the records that a log shares with a copy whose history is `known`.

    The newest common epoch has the same records in both, as far as both go. 0 if they have no epoch in common.
    """
    known_end = log_end_offset
    in_log = {entry.leader_epoch: index for index, entry in enumerate(log)}
    for entry in reversed(known):
        index = in_log.get(entry.leader_epoch)
        if index is not None:
            ends_at = log[index + 1].start_offset if index + 1 < len(log) else log_end_offset
            return min(known_end, ends_at)
        known_end = entry.start_offset
    return 0


def epoch_at(log: Sequence[EpochEntry], offset: int) -> int:
    """The leader epoch that wrote, or would write, the record at an offset; -1 below the first entry."""
    after = bisect_right(log, offset, key=_START_OFFSET)
    return log[after - 1].leader_epoch if after else UNKNOWN_LEADER_EPOCH


class EpochEnd(NamedTuple):
    """`leader_epoch` wrote the records below `end_offset`; (-1, -1): the log cannot tell."""

    leader_epoch: int
    end_offset: int


NO_EPOCH_END = EpochEnd(UNKNOWN_LEADER_EPOCH, -1)


def end_of_epoch(log: Sequence[EpochEntry], leader_epoch: int, log_end_offset: int) -> EpochEnd:
    """The end of an epoch's records in a log, as LeaderEpochFileCache.endOffsetFor of Kafka 4.3 finds it.

    Without records of the epoch it is the end of the newest epoch before it. A log that begins with a later epoch has
    none of these records, so its answer is the requested epoch and the log's first offset.
    """
    if leader_epoch == UNKNOWN_LEADER_EPOCH or not log or leader_epoch > log[-1].leader_epoch:
        return NO_EPOCH_END
    after = bisect_right(log, leader_epoch, key=_LEADER_EPOCH)
    if after == len(log):
        return EpochEnd(leader_epoch, log_end_offset)
    end_offset = log[after].start_offset
    return EpochEnd(log[after - 1].leader_epoch if after else leader_epoch, end_offset)
