"""Rules of answers to acknowledgements: an error means that it took no effect, and a forged one has no success.

The first holds in orderly histories only: nodes are stopped, drained and started, and partitions move, but nothing
crashes, is cut off or times out. After a crash an error may stand for an outcome that nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterator

from support.simulation.evidence import ENDS, Evidence, RecordKey, Violation
from support.simulation.history import ForgeryAnswered, StateWritten, describe


def errors_took_no_effect(evidence: Evidence) -> Iterator[Violation]:
    """Every record that came to its end has an acknowledgement that ended it, and was not answered with an error.

    Records that were delivered as often as the limit allows came to their end by that.
    """
    if not evidence.expected.orderly:
        return
    for key in evidence.deliverable():
        ends = [sent for sent in evidence.sent[key] if sent.event.type in ENDS]
        if not ends or any(sent.confirmed or sent.answer is None for sent in ends):
            continue
        if evidence.highest_count(key) < evidence.expected.delivery_count_limit:
            text = f"it came to its end, but {describe(ends[-1].event)} was answered with {ends[-1].answer}"
            yield evidence.violation("answered with an error, and took effect", key, text)


def forgeries_are_refused(evidence: Evidence) -> Iterator[Violation]:
    """An acknowledgement of records that its sender does not hold succeeds only for what is below the start offset.

    There nothing is left to acknowledge, as in Kafka: records that the group has done with, and deleted ones.
    """
    starts: dict[tuple[str, int], int] = {}
    for event in evidence.events:
        if isinstance(event, StateWritten):
            place = (event.group, event.partition)
            starts[place] = max(starts.get(place, -1), event.start_offset)
        elif isinstance(event, ForgeryAnswered) and not event.error_code:
            last = event.run[1]
            key = RecordKey(event.group, event.partition, last)
            if last >= starts.get((event.group, event.partition), -1) and not evidence.may_be_deleted(key, event.time):
                yield evidence.violation("a forged acknowledgement was taken", key, describe(event))
