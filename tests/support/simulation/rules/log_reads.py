"""The rule of ordinary fetches: what was read while the faults lasted is what the log has there at the end."""

from __future__ import annotations

from collections.abc import Iterator

from support.simulation.evidence import Evidence, Violation
from support.simulation.history import LogRead, describe


def reads_match_the_logs(evidence: Evidence) -> Iterator[Violation]:
    """A fetch passes no offset, and each record is the log's there; read_committed has those of no other transactions
    than the committed ones, and all of these.

    Records that were deleted since are not in the log any more: of them, only the offsets are known.
    """
    logs = {
        partition: {record.offset: record for record in records}
        for partition, records in evidence.expected.logs.items()
    }
    for event in evidence.events:
        if isinstance(event, LogRead):
            offsets = sorted([*(offset for offset, _, _ in event.records), *event.markers])
            if offsets != list(range(event.run[0], event.run[1] + 1)):
                yield Violation("a gap in what was read", describe(event))
            for offset, value, is_committed in event.records:
                if evidence.is_deleted(event.partition, offset):
                    continue
                known = logs[event.partition].get(offset)
                if known is None or known.value != value:
                    text = f"{event.partition}@{offset} was read as {value!r}, and the log has {known}"
                    yield Violation("read what is not in the log", text, [describe(event)])
                elif event.is_committed and is_committed and not known.committed:
                    yield Violation("an aborted record was read", f"{event.partition}@{offset}", [describe(event)])
                elif event.is_committed and not is_committed and known.committed:
                    text = f"{event.partition}@{offset}"
                    yield Violation("a committed record was read as aborted", text, [describe(event)])
