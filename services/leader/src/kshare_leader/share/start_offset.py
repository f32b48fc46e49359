"""What a share-partition begins with: its stored state, or a start offset by share.auto.offset.reset (KIP-932).

A log can end before the stored state does, after its disk was lost. What the log gets from there on are other records
than those that the state knows, so the state is cut at the log's end: nothing may be skipped as already done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kshare_core.configs.rows import BY_DURATION, duration_ms
from kshare_core.states import RecordState
from kshare_leader.machine.share_partition import SharePartition
from kshare_leader.machine.state_write import StateBatch
from kshare_leader.ports import TopicLog


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


class Recovered(NamedTuple):
    """A share-partition from its stored state. Where `overwritten` is not empty, it must be stored before anything is
    delivered, with the machine's first write."""

    machine: SharePartition
    overwritten: list[StateBatch]


def recover(start_offset: int, state_batches: Sequence[StateBatch], log_end_offset: int) -> Recovered:
    """The machine of a stored state, cut at the end of the log."""
    machine = SharePartition(start_offset=start_offset, state_batches=state_batches)
    if machine.end_offset <= log_end_offset:
        return Recovered(machine, [])
    known = [
        StateBatch(first, min(last, log_end_offset - 1), state, delivery_count)
        for first, last, state, delivery_count in state_batches
        if first < log_end_offset
    ]
    overwritten = StateBatch(log_end_offset, machine.end_offset - 1, RecordState.AVAILABLE, 0)
    machine = SharePartition(
        start_offset=min(start_offset, log_end_offset), state_batches=[*known, overwritten], start_is_stored=False
    )
    return Recovered(machine, [overwritten])
