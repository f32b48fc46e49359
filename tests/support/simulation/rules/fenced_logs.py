"""Rules of the fenced logs of the kafka engine: whatever an owner was told is confirmed counts for every reader.

Confirmations are noted where they are given (`watched_owners`), and compared with the logs at the end by rules of their
own: those of the text of `kshare_upstream.fenced_log`, said once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from unittest.mock import patch

from kshare_upstream.fenced_log.claim import CONTROL_KEY, Claim, ControlKind
from kshare_upstream.fenced_log.owner import FencedLog, LogRecord
from kshare_upstream.port import UpstreamPartitionName as Name
from kshare_wire.record_batches import read_header
from kshare_wire.record_reading import open_records
from support.simulation.evidence import Violation
from support.simulation.loop import Incarnation, current_incarnation
from support.simulation.upstream.cluster import SimulatedUpstream

Records = tuple[tuple[bytes | None, bytes | None], ...]
"""Key and value of each record of a batch."""


class Confirmation(NamedTuple):
    """What an owner was told: its records are in the log from `base_offset` on. No records: its claim is."""

    owner: Incarnation | None
    at: Name
    base_offset: int
    records: Records


@contextmanager
def watched_owners() -> Iterator[list[Confirmation]]:
    """While it is entered, the list gets every confirmation that an owner of a fenced log is given."""
    given: list[Confirmation] = []
    append, claim = FencedLog.append, FencedLog.claim

    async def watched_append(log: FencedLog, records: Sequence[LogRecord]) -> int:
        base_offset = await append(log, records)
        appended = tuple((record.key, record.value) for record in records)
        given.append(Confirmation(current_incarnation.get(), log.log.at, base_offset, appended))
        return base_offset

    async def watched_claim(log: FencedLog, wanted: Claim, take: object) -> None:
        await claim(log, wanted, take)  # type: ignore[arg-type]  # passed on
        given.append(Confirmation(current_incarnation.get(), log.log.at, log.mark_offset, ()))

    with patch.object(FencedLog, "append", watched_append), patch.object(FencedLog, "claim", watched_claim):
        yield given


def counted(batches: Sequence[bytes]) -> Mapping[int, Records]:
    """The records of each batch that counts, by base offset; of a valid claim, none. `batches` begin a log."""
    rank, producer_id = (-1, -1), -1
    found: dict[int, Records] = {}
    for data in batches:
        header = read_header(data)
        records = tuple((record.key, record.value) for record in open_records(data))
        key, value = records[0]
        if key != CONTROL_KEY:
            if header.producer_id == producer_id:
                found[header.base_offset] = records
            continue
        assert value is not None
        kind, epoch, attempt = value[2], int.from_bytes(value[3:11]), int.from_bytes(value[11:15])
        is_beginning = not found and producer_id == -1 and kind == ControlKind.MARK  # of a log that was pruned
        if is_beginning or (kind == ControlKind.CLAIM and (epoch, attempt) > rank):
            rank, producer_id = (epoch, attempt), header.producer_id
            found[header.base_offset] = ()
    return found


def confirmations_count(upstream: SimulatedUpstream, given: Sequence[Confirmation]) -> Iterator[Violation]:
    """Every confirmation counts in the whole log, also where it was pruned; what is left counts as it did."""
    folds: dict[Name, Mapping[int, Records]] = {}
    for confirmation in given:
        partition = upstream.partition(confirmation.at)
        assert partition is not None, f"topic {confirmation.at.topic} is gone"
        if confirmation.at not in folds:
            whole = folds[confirmation.at] = counted([batch.data for batch in partition.log.history])
            kept = counted([batch.data for batch in partition.log.batches])
            start = partition.log.start
            if {offset: records for offset, records in whole.items() if offset > start and records} != {
                offset: records for offset, records in kept.items() if offset > start and records
            }:
                yield Violation("a pruned log counts otherwise", f"{confirmation.at} from {start} on")
        if folds[confirmation.at].get(confirmation.base_offset) != confirmation.records:
            text = f"{confirmation.at} at {confirmation.base_offset}, confirmed to {confirmation.owner}"
            yield Violation("confirmed, and it does not count", text)
