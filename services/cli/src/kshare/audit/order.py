"""The check whether an event follows its predecessor in a share-partition: epochs, incarnations and sequences.

Events come in the order of `HistoryEvent`. An incarnation numbers all its events of a share-partition, even if another
leader served it in between, so two successive events show whether any is missing.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from kshare.audit.events import HistoryEvent
from kshare.audit.findings import Rule

INCARNATIONS_KEPT = 1_000
"""Incarnations whose last event is remembered, to detect a return with a lower leader epoch."""


class Continuity(Enum):
    """The relation of an event to its predecessor."""

    FOLLOWS = auto()
    """The next event of the same leader in the same epochs; none is missing."""
    REPEATED = auto()
    """A repetition, to be ignored."""
    LOST = auto()
    """Sequence numbers between the two are missing."""
    ANOTHER = auto()
    """Another incarnation, or the same one again: the last events of the former may be missing."""


class Breach(NamedTuple):
    """An impossible order; `shown_by` has the earlier events that show it, without the event itself."""

    rule: Rule
    text: str
    shown_by: tuple[HistoryEvent, ...]


class Place(NamedTuple):
    continuity: Continuity
    breaches: tuple[Breach, ...]


class OrderOfEvents:
    """The state of the check; call `place` for every event, in order."""

    __slots__ = ("_highest_state_epoch", "_last", "_last_of")

    def __init__(self) -> None:
        self._last: HistoryEvent | None = None
        self._last_of: dict[tuple[int, int], HistoryEvent] = {}
        self._highest_state_epoch: HistoryEvent | None = None

    def place(self, event: HistoryEvent) -> Place:
        last = self._last
        if last is None:
            self._remember(event)
            return Place(Continuity.ANOTHER, ())
        if event[:3] == last[:3] and event.leader == last.leader:
            if event == last:
                return Place(Continuity.REPEATED, ())
            text = f"two different events have the sequence {event.sequence}"
            return Place(Continuity.REPEATED, (Breach(Rule.SEQUENCE_REUSED, text, (last,)),))
        breaches = tuple(self._breaches(event, last))
        continuity = self._continuity(event, last)
        self._remember(event)
        return Place(continuity, breaches)

    def _breaches(self, event: HistoryEvent, last: HistoryEvent) -> list[Breach]:
        found: list[Breach] = []
        same_incarnation = (event.leader, event.incarnation) == (last.leader, last.incarnation)
        if event.leader_epoch == last.leader_epoch and not same_incarnation:
            text = f"leader epoch {event.leader_epoch} belongs to two incarnations"
            found.append(Breach(Rule.TWO_LEADERS, text, (last,)))
        highest = self._highest_state_epoch
        if highest is not None and event.state_epoch < highest.state_epoch:
            text = f"state epoch {highest.state_epoch} was followed by {event.state_epoch}"
            found.append(Breach(Rule.STATE_EPOCH_BACK, text, (highest,)))
        earlier = self._last_of.get((event.leader, event.incarnation))
        if earlier is not None and event.sequence <= earlier.sequence:
            text = (
                f"the incarnation told sequence {event.sequence} with leader epoch {event.leader_epoch}, "
                f"and sequence {earlier.sequence} after it with {earlier.leader_epoch}"
            )
            found.append(Breach(Rule.LEADER_EPOCH_BACK, text, (earlier,)))
        return found

    @staticmethod
    def _continuity(event: HistoryEvent, last: HistoryEvent) -> Continuity:
        if (event.leader, event.incarnation) != (last.leader, last.incarnation):
            return Continuity.ANOTHER
        if event.sequence != last.sequence + 1:
            return Continuity.LOST
        same_epochs = (event.state_epoch, event.leader_epoch) == (last.state_epoch, last.leader_epoch)
        return Continuity.FOLLOWS if same_epochs else Continuity.ANOTHER

    def _remember(self, event: HistoryEvent) -> None:
        self._last = event
        of = (event.leader, event.incarnation)
        self._last_of.pop(of, None)
        self._last_of[of] = event
        if len(self._last_of) > INCARNATIONS_KEPT:
            del self._last_of[next(iter(self._last_of))]
        highest = self._highest_state_epoch
        if highest is None or event.state_epoch > highest.state_epoch:
            self._highest_state_epoch = event
