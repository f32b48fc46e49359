"""Rules of acquisition that clients' events alone can prove broken.

A leader that keeps a share-partition gives each acquisition of a record a higher delivery count, to one member; only
that member's acknowledgement is confirmed until the next acquisition. A leader that loads a share-partition again goes
on from the stored counts, which may be lower. Clients do not see that, so that rules of counts are applied where no
fault was near: none from the earliest time at which the first delivery can have been acquired to the later event.

A client may show a delivery long after it was acquired. What is certain is that a record was acquired after it was
produced, and by a life of a member after that began.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from support.recorded.members import MemberEvent
from support.recorded.stalls import Window
from support.simulation.evidence import Violation
from support.simulation.history import AcknowledgeAnswered, AcknowledgeSent, Delivered, describe

Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True, slots=True)
class ClientKnowledge:
    """What else is known; times are monotonic seconds."""

    produced_at: Mapping[str, float]
    """When each value was sent to the log."""
    started_at: Mapping[str, float]
    """When each life of a member began."""
    windows: Sequence[Window]

    def acquired_after(self, event: Delivered) -> float:
        """The earliest time at which it can have been acquired."""
        return max(self.produced_at.get(event.values[0], -math.inf), self.started_at.get(event.member, -math.inf))

    def may_be_reloaded(self, began: float, ended: float) -> bool:
        """Whether a leader may have loaded the share-partition anew in this time: a fault or its recovery was there."""
        return any(one.began < ended and began < one.ended + one.resumes_within_s for one in self.windows)


def broken_client_rules(events: Sequence[MemberEvent], known: ClientKnowledge) -> Iterator[Violation]:
    """At most one violation of each record and rule."""
    deliveries: dict[Place, list[Delivered]] = defaultdict(list)
    for event in events:
        if isinstance(event, Delivered):
            deliveries[event.partition, event.run[0]].append(event)
    confirmed = _confirmed(events)
    for place, given in deliveries.items():
        yield from _given_once(place, given, known)
        yield from _counts_grow(place, given, known)
        yield from _confirmed_holders(place, given, confirmed[place], known)


def _confirmed(events: Iterable[MemberEvent]) -> dict[Place, list[AcknowledgeSent]]:
    answered = {
        event.acknowledge_id: None
        for event in events
        if isinstance(event, AcknowledgeAnswered) and event.error_code == 0
    }
    found: dict[Place, list[AcknowledgeSent]] = defaultdict(list)
    for event in events:
        if isinstance(event, AcknowledgeSent) and event.acknowledge_id in answered:
            found[event.partition, event.run[0]].append(event)
    return found


def _given_once(place: Place, given: Sequence[Delivered], known: ClientKnowledge) -> Iterator[Violation]:
    """One acquisition has one count, and one member gets it once."""
    first: dict[int, Delivered] = {}
    for event in sorted(given, key=lambda event: event.time):
        before = first.setdefault(event.delivery_count, event)
        if before is not event and not known.may_be_reloaded(known.acquired_after(before), event.time):
            yield _violation("one delivery given twice", place, [before, event])
            return


def _counts_grow(place: Place, given: Sequence[Delivered], known: ClientKnowledge) -> Iterator[Violation]:
    """What was certainly acquired after another delivery had come has a higher count."""
    for before, event in permutations(given, 2):
        if event.delivery_count >= before.delivery_count or known.acquired_after(event) <= before.time:
            continue
        if not known.may_be_reloaded(known.acquired_after(before), event.time):
            yield _violation("delivery count went back", place, [before, event])
            return


def _confirmed_holders(
    place: Place, given: Sequence[Delivered], confirmed: Sequence[AcknowledgeSent], known: ClientKnowledge
) -> Iterator[Violation]:
    """An acknowledgement is confirmed to the holder only: nobody had got a later delivery before it was sent.

    A member that was given the record several times may have been the holder again.
    """
    for sent in confirmed:
        own = [event for event in given if event.member == sent.member]
        if len(own) != 1:
            continue
        for other in given:
            is_later = other.delivery_count > own[0].delivery_count and other.time < sent.time
            if other is own[0] or not is_later:
                continue
            is_certain = known.acquired_after(other) > own[0].time
            if is_certain or not known.may_be_reloaded(known.acquired_after(own[0]), sent.time):
                yield _violation("confirmed to another than the holder", place, [own[0], other, sent])
                return


def _violation(rule: str, place: Place, shown: Sequence[MemberEvent]) -> Violation:
    return Violation(rule, f"partition {place[0]}, offset {place[1]}", [describe(event) for event in shown])
