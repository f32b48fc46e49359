"""Rules for runs in which a leader's disk is lost, or an older copy comes back: records are known by their values.

An offset means another record then. What counts is what is in the logs at the end: every record there was delivered to
its end as itself, and none came again after its end was confirmed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kshare_core.states import AcknowledgeType
from support.simulation.evidence import ENDS, NEVER, Evidence, RecordKey, Sent, Violation
from support.simulation.history import AcknowledgeAnswered, AcknowledgeSent, Delivered, describe


class RecordOfGroup(NamedTuple):
    group: str
    value: str


class RecordsByValue:
    """Deliveries of each record, and the acknowledgements that members sent of it."""

    def __init__(self, evidence: Evidence) -> None:
        self.deliveries: dict[RecordOfGroup, list[Delivered]] = defaultdict(list)
        self.sent: dict[RecordOfGroup, list[Sent]] = defaultdict(list)
        answers = {event.acknowledge_id: event for event in evidence.events if isinstance(event, AcknowledgeAnswered)}
        seen: dict[tuple[str, str, int, int], str] = {}
        """What a member got last at an offset of a partition, which is what it acknowledges."""
        for event in evidence.events:
            if isinstance(event, Delivered):
                for index, value in enumerate(event.values):
                    seen[event.group, event.member, event.partition, event.run[0] + index] = value
                    self.deliveries[RecordOfGroup(event.group, value)].append(event)
            elif isinstance(event, AcknowledgeSent):
                for offset in range(event.run[0], event.run[1] + 1):
                    value = seen[event.group, event.member, event.partition, offset]
                    sent = Sent(event, answers.get(event.acknowledge_id))
                    self.sent[RecordOfGroup(event.group, value)].append(sent)


def records_of_the_log_end_as_themselves(evidence: Evidence, sent_at: Mapping[str, float]) -> Iterator[Violation]:
    """Every record that is in a log at the end was accepted, rejected, or acquired as often as the limit allows.

    The answer with its last acquisition may have been lost. `sent_at`: when each value was sent first; an earlier
    acquisition of its offset was one of another record.
    """
    by_value = RecordsByValue(evidence)
    limit = evidence.expected.delivery_count_limit
    for group in evidence.expected.groups:
        for partition, records in evidence.expected.logs.items():
            for record in records:
                key = RecordOfGroup(group, record.value)
                ended = any(
                    sent.event.type != AcknowledgeType.RELEASE and sent.may_have_effect for sent in by_value.sent[key]
                )
                acquired = evidence.acquired.get(RecordKey(group, partition, record.offset), ())
                since = sent_at.get(record.value, NEVER)
                counts = [event.delivery_count for event in acquired if event.time >= since]
                highest = max([*counts, *(event.delivery_count for event in by_value.deliveries[key])], default=0)
                if not ended and highest < limit:
                    text = f"{record.value!r} is at {partition}@{record.offset}, and {group} never had it to its end"
                    yield Violation("skipped", text, [describe(event) for event in by_value.deliveries[key]])


def confirmed_ends_stay(evidence: Evidence) -> Iterator[Violation]:
    """No record is fetched again once its ACCEPT or REJECT was confirmed, whatever became of its log since."""
    by_value = RecordsByValue(evidence)
    for key, all_sent in by_value.sent.items():
        ended = [sent for sent in all_sent if sent.event.type in ENDS]
        confirmed_at = min((sent.ended_at for sent in ended), default=NEVER)
        again = [event for event in by_value.deliveries[key] if event.sent_at > confirmed_at]
        if again:
            text = f"the end of {key.value!r} was confirmed to {key.group} at {confirmed_at:.4f}"
            yield Violation("delivered after its confirmation", text, [describe(event) for event in again])
