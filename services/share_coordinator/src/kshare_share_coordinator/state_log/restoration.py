"""Whether a log that was read again still has what was confirmed, and the records that bring it back.

An unclean leader election of the cluster drops acknowledged records. The owner has them in memory: as long as it is the
same owner, what is missing is appended again.
"""

from __future__ import annotations

from collections.abc import Iterator

from kshare_share_coordinator.records import SHARE_SNAPSHOT, SHARE_UPDATE
from kshare_share_coordinator.state_log.rows import EncodedRow, StateRows
from kshare_upstream.fenced_log.owner import LogRecord

_SNAPSHOT_TYPE = SHARE_SNAPSHOT.to_bytes(2, "big")
_UPDATE_TYPE = SHARE_UPDATE.to_bytes(2, "big")


def is_lost(confirmed: StateRows, end_offset: int, found: StateRows) -> bool:
    """Whether a log that had the rows `confirmed` below `end_offset`, and has `found` now, has lost some of it.

    What is at `end_offset` or above was not confirmed, and may supersede what was. `found.ended` has the tombstones.
    """
    ended = found.ended or {}
    for prefix in confirmed.prefixes():
        before, now = confirmed.row(prefix), found.row(prefix)
        assert before is not None
        if now is None:
            if ended.get(prefix, -1) < end_offset:
                return True
        elif now.offset < end_offset and not _continues(before, now):
            return True
    return any(
        prefix not in confirmed and (row := found.row(prefix)) is not None and row.offset < end_offset
        for prefix in found.prefixes()
    )


def restoring_records(confirmed: StateRows, found: StateRows) -> Iterator[LogRecord]:
    """The records that make `found` equal to `confirmed`."""
    for prefix in confirmed.prefixes():
        row, now = confirmed.row(prefix), found.row(prefix)
        assert row is not None
        if now is None or now[1:] != row[1:]:
            yield LogRecord(_SNAPSHOT_TYPE + prefix, row.snapshot)
            yield from (LogRecord(_UPDATE_TYPE + prefix, update) for update in row.updates)
    for prefix in found.prefixes():
        if prefix not in confirmed:
            yield LogRecord(_SNAPSHOT_TYPE + prefix, None)


def _continues(before: EncodedRow, now: EncodedRow) -> bool:
    return (
        now.offset == before.offset
        and now.snapshot == before.snapshot
        and list(now.updates[: len(before.updates)]) == list(before.updates)
    )
