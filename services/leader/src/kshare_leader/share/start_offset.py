"""The initial state of a share-partition: its stored state, or a start offset by share.auto.offset.reset (KIP-932).

A state can have records that the log does not have: the log's disk was lost, or is an older copy, or an administrator
set a start offset beyond the log's end. The log has, or will have, other records at those offsets, which were never
delivered or acknowledged. So the state is truncated where the two diverge (`TopicLog.diverging_offset`, `truncated`),
durably, before any record is delivered. The state below that offset is kept, as the log has those records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kshare_core.configs.rows import BY_DURATION, duration_ms
from kshare_core.leader_epochs import EpochEntry
from kshare_leader.machine.state_write import StateBatch
from kshare_leader.ports import TopicLog


class Truncation(NamedTuple):
    """The leader epoch in which a state was truncated, and the offset from which on its log has other records."""

    leader_epoch: int
    offset: int


NOT_TRUNCATED = Truncation(0, 0)


class SharePartitionState(NamedTuple):
    """A response of ReadShareGroupState; `state_batches` ascend."""

    state_epoch: int
    start_offset: int
    state_batches: list[StateBatch]
    leader_epochs: Sequence[EpochEntry] = ()
    """The leader epoch history of the state's log; empty if it is not known."""
    truncation: Truncation = NOT_TRUNCATED
    """The newest truncation of the state."""


async def find_start_offset(auto_offset_reset: str, log: TopicLog, wall_now_ms: int) -> int:
    """The start offset by `latest`, `earliest` or `by_duration:<ISO 8601 duration>`.

    As in Kafka (ShareFetchUtils) `latest` is the high watermark and `by_duration` finds any record, also for
    read_committed groups: an open transaction's records before that are not the group's. If no record is recent
    enough, `by_duration` is `latest` (KIP-1106). Raises StorageFailure, and KafkaError CORRUPT_MESSAGE.
    """
    if auto_offset_reset == "earliest":
        return log.log_start_offset
    if auto_offset_reset.startswith(BY_DURATION):
        age_ms = duration_ms(auto_offset_reset.removeprefix(BY_DURATION))
        found = await log.offset_for_timestamp(max(0, wall_now_ms - age_ms))
        if found is not None:
            return found.offset
    return log.high_watermark


def state_end_offset(state: SharePartitionState) -> int:
    """The offset after the last one in the state."""
    return max([state.start_offset, *[batch.last_offset + 1 for batch in state.state_batches]])


class TruncatedState(NamedTuple):
    """The rest of a state that is truncated at `offset`."""

    offset: int
    start_offset: int
    delivery_complete_count: int
    state_batches: list[StateBatch]


def truncated(state: SharePartitionState, offset: int) -> TruncatedState:
    """The state without `offset` and later offsets."""
    batches = [
        batch._replace(last_offset=min(batch.last_offset, offset - 1))
        for batch in state.state_batches
        if batch.first_offset < offset
    ]
    done = sum(batch.last_offset - batch.first_offset + 1 for batch in batches if batch.state.is_terminal)
    return TruncatedState(offset, min(state.start_offset, offset), done, batches)
