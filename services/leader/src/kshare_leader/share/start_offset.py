"""What a share-partition begins with: its stored state, or a start offset by share.auto.offset.reset (KIP-932).

A state can know records that the log does not have: the log's disk was lost, or is an older copy, or an administrator
set a start offset beyond the log's end. The log has, or will have, other records at those offsets, which nobody has
delivered or acknowledged. So the state is cut where the two part (`diverging_offset`, `truncated`), durably, before
anything is delivered. What lies below stays as it was: the log has those records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kshare_core.configs.rows import BY_DURATION, duration_ms
from kshare_core.leader_epochs import EpochEntry, common_end_offset
from kshare_leader.machine.state_write import StateBatch
from kshare_leader.ports import TopicLog


class Truncation(NamedTuple):
    """In which leader epoch a state was cut, and from which offset on its log has other records."""

    leader_epoch: int
    offset: int


NOT_TRUNCATED = Truncation(0, 0)


class SharePartitionState(NamedTuple):
    """What ReadShareGroupState returned; `state_batches` ascend."""

    state_epoch: int
    start_offset: int
    state_batches: list[StateBatch]
    leader_epochs: Sequence[EpochEntry] = ()
    """The leader epoch history of the log that the state is about; empty where it is not known."""
    truncation: Truncation = NOT_TRUNCATED
    """The newest one of the state."""


async def find_start_offset(auto_offset_reset: str, log: TopicLog, wall_now_ms: int) -> int:
    """The start offset by `latest`, `earliest` or `by_duration:<ISO 8601 duration>`.

    As in Kafka (ShareFetchUtils) `latest` is the high watermark and `by_duration` finds any record, also for
    read_committed groups: an open transaction's records before that are not the group's. Where no record is young
    enough, `by_duration` is `latest` (KIP-1106). Raises StorageFailure, and KafkaError CORRUPT_MESSAGE.
    """
    if auto_offset_reset == "earliest":
        return log.log_start_offset
    if auto_offset_reset.startswith(BY_DURATION):
        found = await log.offset_for_timestamp(wall_now_ms - duration_ms(auto_offset_reset.removeprefix(BY_DURATION)))
        if found is not None:
            return found.offset
    return log.high_watermark


def state_end_offset(state: SharePartitionState) -> int:
    """Behind the last offset that the state says something about."""
    return max([state.start_offset, *[batch.last_offset + 1 for batch in state.state_batches]])


def diverging_offset(state: SharePartitionState, log: TopicLog) -> int | None:
    """The first offset whose record is not the one that the state knows, or that the log does not have.

    None where the state knows no such offset. Where nobody vouched for the state's records (it has no leader epoch
    history), only the log's end can tell. Raises StorageFailure.
    """
    state_end = state_end_offset(state)
    log_end = log.high_watermark
    offset = log_end
    if state.leader_epochs:
        offset = common_end_offset(state.leader_epochs, log.leader_epochs, log_end)
    offset = max(offset, min(log.log_start_offset, log_end))
    if state_end <= offset:
        return None
    if offset < log_end:  # up to the next batch there are no records, so nothing is wrong with what is known there
        batches = log.read(offset, 1)
        offset = max(offset, batches[0].base_offset) if batches else log_end
    return offset if offset < state_end else None


class TruncatedState(NamedTuple):
    """What of a state stays when it is cut at `offset`."""

    offset: int
    start_offset: int
    delivery_complete_count: int
    state_batches: list[StateBatch]


def truncated(state: SharePartitionState, offset: int) -> TruncatedState:
    """The state without `offset` and what lies behind it."""
    batches = [
        batch._replace(last_offset=min(batch.last_offset, offset - 1))
        for batch in state.state_batches
        if batch.first_offset < offset
    ]
    done = sum(batch.last_offset - batch.first_offset + 1 for batch in batches if batch.state.is_terminal)
    return TruncatedState(offset, min(state.start_offset, offset), done, batches)
