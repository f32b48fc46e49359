"""Delivery facts: the state changes of records, run by run. A share-partition keeps them only if it was asked to.

A fact that needs no write is available at once. A fact that a write carries is available when the write is durable; it
is dropped if the write failed or the log's start passed it. Facts are in the order in which they took effect.
"""

from __future__ import annotations

from typing import NamedTuple

from kshare_core.states import RecordState
from kshare_leader.machine.interval_map import Run
from kshare_leader.machine.transitions import ArchivingReason, Event


class DeliveryFact(NamedTuple):
    """`event` brought the records first..last to `state`; the other fields are those of the run before it.

    `member_id` is empty if the records had no owner. The `lock_deadline_ms` of a RENEW is the new one.
    """

    event: Event
    first_offset: int
    last_offset: int
    state: RecordState
    delivery_count: int
    member_id: str
    lock_deadline_ms: int
    reason: ArchivingReason | None


class DeliveryFacts:
    """Facts that took effect and were not taken yet."""

    __slots__ = ("_found", "is_kept")

    def __init__(self) -> None:
        self.is_kept = False
        self._found: list[DeliveryFact] = []

    def keep(self) -> None:
        """Starts keeping facts."""
        self.is_kept = True

    def note(self, run: Run, event: Event, state: RecordState) -> None:
        """Notes a fact; called before the run changes, except its lock deadline."""
        if self.is_kept:
            _add_fact(self._found, run, event, state)

    def note_pending(self, pending: list[DeliveryFact], run: Run, event: Event, state: RecordState) -> None:
        """`note` for a change that takes effect with a write: `pending` are the write's facts."""
        if self.is_kept:
            _add_fact(pending, run, event, state)

    def add_all(self, facts: list[DeliveryFact]) -> None:
        """Adds the facts of a write that is now durable."""
        self._found += facts

    def take(self) -> list[DeliveryFact]:
        """Removes and returns all facts."""
        if not self._found:
            return []
        found, self._found = self._found, []
        return found


def _add_fact(facts: list[DeliveryFact], run: Run, event: Event, state: RecordState) -> None:
    """Adds the fact of a run, joined to the previous fact if that is adjacent and equal."""
    first_offset, delivery_count = run.first_offset, run.delivery_count
    member_id = "" if run.owner is None else run.owner.member_id
    if facts:
        last = facts[-1]
        if (
            last.last_offset + 1 == first_offset
            and last.event is event
            and last.state is state
            and last.delivery_count == delivery_count
            and last.member_id == member_id
            and last.reason is run.reason
        ):
            facts[-1] = last._replace(last_offset=run.last_offset)
            return
    facts.append(
        DeliveryFact(
            event, first_offset, run.last_offset, state, delivery_count, member_id, run.lock_deadline_ms, run.reason
        )
    )


def facts_not_below(facts: list[DeliveryFact], offset: int) -> list[DeliveryFact]:
    """The facts that remain after all below `offset` was archived, except records that wait for dead letters."""
    left: list[DeliveryFact] = []
    for fact in facts:
        stays = fact.state is RecordState.ARCHIVING or fact.event is Event.DEAD_LETTERED
        if stays or fact.first_offset >= offset:
            left.append(fact)
        elif fact.last_offset >= offset:
            left.append(fact._replace(first_offset=offset))
    return left
