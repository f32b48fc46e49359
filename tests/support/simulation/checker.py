"""The correctness rules of delivery, applied to a recorded history.

Clients' knowledge is what counts: an acknowledgement is confirmed when its answer has arrived, a delivery may have
happened at any time between its request and its answer. Every rule is only applied where the history proves a breach.

Here are the rules of delivery; `rules.holders` has those of acquisition, `rules.leases` those of leases and moves,
`rules.stored_states` those of the share coordinators, `rules.logs` and `rules.log_reads` those of the logs,
`rules.transactions` those of transactions, `rules.dead_letters` those of dead letters, `rules.committed_offsets` those
of consumer groups.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice
from operator import attrgetter

from kshare_core.errors import ErrorCode
from kshare_core.states import AcknowledgeType
from support.simulation.evidence import ENDS, NEVER, Evidence, Expectations, RecordKey, Sent, Violation
from support.simulation.history import Acquired, Delivered, History, StateWritten, describe
from support.simulation.rules.acknowledgements import errors_took_no_effect, forgeries_are_refused
from support.simulation.rules.committed_offsets import committed_offsets_survive
from support.simulation.rules.dead_letters import dead_letters_are_what_was_given_up
from support.simulation.rules.holders import HolderRules
from support.simulation.rules.leases import nobody_serves_without_a_lease, nothing_is_served_after_its_handover
from support.simulation.rules.liveness import something_is_delivered
from support.simulation.rules.log_reads import reads_match_the_logs
from support.simulation.rules.logs import (
    delivered_what_was_produced,
    logs_are_dense,
    logs_do_not_change,
    nothing_deleted_comes_back,
    produced_exactly_once,
)
from support.simulation.rules.stored_states import StoredStateRules
from support.simulation.rules.transactions import committed_groups_get_committed_records, transactions_are_atomic

__all__ = ["Checker", "Expectations", "RecordKey", "Violation"]

VIOLATIONS_SHOWN = 3
"""Of each rule."""
VIOLATIONS_EXAMINED = 12
"""Of the rules of one function: each comes with the history of its record, which takes time."""


class Checker:
    """`check` applies every rule."""

    def __init__(self, history: History, expectations: Expectations) -> None:
        self._evidence = Evidence(history, expectations)

    @property
    def liveness(self) -> Counter[str]:
        """How often `rules.liveness` was put, once `check` is done."""
        return self._evidence.liveness

    def check(self) -> list[Violation]:
        """Every breach, the worst rules first; at most three of each rule."""
        evidence = self._evidence
        rules = (
            self._no_delivery_after_confirmation(),
            produced_exactly_once(evidence),
            logs_are_dense(evidence),
            logs_do_not_change(evidence),
            reads_match_the_logs(evidence),
            transactions_are_atomic(evidence),
            committed_groups_get_committed_records(evidence),
            delivered_what_was_produced(evidence),
            nothing_deleted_comes_back(evidence),
            self._nothing_skipped(),
            errors_took_no_effect(evidence),
            forgeries_are_refused(evidence),
            dead_letters_are_what_was_given_up(evidence),
            committed_offsets_survive(evidence),
            self._ended_once(),
            self._delivered_is_acquired(),
            HolderRules(evidence).violations(),
            nobody_serves_without_a_lease(evidence),
            nothing_is_served_after_its_handover(evidence),
            self._delivery_counts(),
            StoredStateRules(evidence).violations(),
            self._state_moves_forwards(),
            something_is_delivered(evidence),
            self._calm_runs_have_no_errors(),
        )
        return [violation for rule in rules for violation in _first_of_each(rule)]

    # Rules

    def _no_delivery_after_confirmation(self) -> Iterator[Violation]:
        """Rule 2: a record whose ACCEPT or REJECT was confirmed is never delivered again to the group."""
        for key, all_sent in self._evidence.sent.items():
            confirmed_at = min((sent.ended_at for sent in all_sent), default=NEVER)
            events: list[Delivered | Acquired] = [*self._evidence.deliveries[key], *self._evidence.acquired[key]]
            for event in events:
                if event.sent_at > confirmed_at:
                    text = f"its end was confirmed at {confirmed_at:.4f}, and it was fetched again: {describe(event)}"
                    yield self._evidence.violation("delivered after its confirmation", key, text)
                    break

    def _nothing_skipped(self) -> Iterator[Violation]:
        """Rule 2: every record was accepted, rejected or delivered as often as the limit allows."""
        limit = self._evidence.expected.delivery_count_limit
        for key in self._evidence.deliverable():
            sent = self._evidence.sent[key]
            ended = any(one.event.type in ENDS and one.may_have_effect for one in sent)
            highest = self._evidence.highest_count(key)
            if not ended and highest < limit:
                text = f"neither accepted nor rejected, and delivered with count {highest} of {limit}"
                yield self._evidence.violation("skipped", key, text)

    def _delivered_is_acquired(self) -> Iterator[Violation]:
        """What a member gets is what a leader gave to this member, with the same count, and once."""
        if not self._evidence.expected.is_tapped:
            return
        names = self._evidence.expected.member_names
        for key, deliveries in self._evidence.deliveries.items():
            given: dict[tuple[str, int], list[float]] = defaultdict(list)
            for acquired in self._evidence.acquired[key]:
                member = names.get(acquired.member, acquired.member)
                given[member, acquired.delivery_count].append(acquired.time)
            for event in deliveries:
                times = given[event.member, event.delivery_count]
                if times and times[0] <= event.time:
                    times.pop(0)
                else:
                    yield self._evidence.violation("delivered without being acquired", key, describe(event))
                    break

    def _ended_once(self) -> Iterator[Violation]:
        """No record has two confirmed ends (ACCEPT, REJECT) in a group: one confirmation is wrong.

        Of a record that was deleted, an acknowledgement is taken and does nothing. What counts is when it was answered:
        it may have waited in a gateway since long before the deletion.
        """
        for key, all_sent in self._evidence.sent.items():
            by_record: dict[str, list[Sent]] = defaultdict(list)
            for one in all_sent:
                if one.event.type in ENDS and one.confirmed:
                    by_record[self._value(key, one)].append(one)
            for value, found in by_record.items():
                same = sorted(found, key=attrgetter("ended_at"))
                if len(same) > 1 and not self._evidence.may_be_deleted(key, same[1].ended_at):
                    text = f"{value!r}: {describe(same[0].event)} and {describe(same[1].event)}"
                    yield self._evidence.violation("ended twice", key, text)

    def _value(self, key: RecordKey, sent: Sent) -> str:
        """The record that the sender meant: the newest that it was given at the offset."""
        for event in reversed(self._evidence.deliveries[key]):
            if event.member == sent.event.member and event.time <= sent.event.time:
                return event.values[key.offset - event.run[0]]
        return ""

    def _delivery_counts(self) -> Iterator[Violation]:
        """Counts are within the limit; a confirmed release is remembered, whatever dies."""
        limit = self._evidence.expected.delivery_count_limit
        is_tapped = self._evidence.expected.is_tapped
        keys = list(self._evidence.acquired if is_tapped else self._evidence.deliveries)
        for key in keys:
            over = [event for event in self._evidence.given(key) if not 1 <= event.delivery_count <= limit]
            if over:
                yield self._evidence.violation("delivery count outside 1 to the limit", key, describe(over[0]))
            yield from self._releases_are_remembered(key)

    def _releases_are_remembered(self, key: RecordKey) -> Iterator[Violation]:
        for sent in self._evidence.sent[key]:
            if sent.event.type != AcknowledgeType.RELEASE or not sent.confirmed or sent.answer is None:
                continue
            held = [
                event.delivery_count
                for event in self._evidence.deliveries[key]
                if event.member == sent.event.member and event.time <= sent.event.time
            ]
            for after in self._evidence.given(key):
                if held and after.sent_at > sent.answer.time and after.delivery_count <= min(held):
                    text = f"released with count {min(held)} or more at {sent.answer.time:.4f}; {describe(after)}"
                    yield self._evidence.violation("delivery count forgotten", key, text)
                    return

    def _state_moves_forwards(self) -> Iterator[Violation]:
        """Rule 4: what the share coordinators confirm has epochs and start offsets that never go back."""
        newest: dict[tuple[str, int], StateWritten] = {}
        for event in self._evidence.events:
            if not isinstance(event, StateWritten):
                continue
            before = newest.get((event.group, event.partition))
            if before is not None and _is_late(before, event):
                continue
            newest[event.group, event.partition] = event
            if before is None:
                continue
            known_start = max(before.start_offset, -1)
            if event.start_offset == -1:
                newest[event.group, event.partition] = event._replace(start_offset=known_start)
            for name in ("state_epoch", "leader_epoch", "start_offset"):
                if name == "start_offset" and event.state_epoch > before.state_epoch:
                    continue  # an administrator altered it
                old, new = getattr(before, name), getattr(event, name)
                if new < old and new != -1:
                    text = f"{event.group}/{event.partition}: {name} {old} was followed by {new}"
                    yield Violation("state went back", text, [describe(before), describe(event)])

    def _calm_runs_have_no_errors(self) -> Iterator[Violation]:
        """Without faults no acknowledgement fails but for INVALID_RECORD_STATE, which `rules.holders` judges."""
        if not self._evidence.expected.calm:
            return
        for key, all_sent in self._evidence.sent.items():
            for sent in all_sent:
                if sent.answer is not None and sent.answer.error_code not in (0, ErrorCode.INVALID_RECORD_STATE):
                    text = f"{sent.answer}: {describe(sent.event)}"
                    yield self._evidence.violation("acknowledgement failed without a fault", key, text)


def _first_of_each(violations: Iterator[Violation]) -> Iterator[Violation]:
    """The first three with each name: one function may have several rules, of which none shall hide the others."""
    found: Counter[str] = Counter()
    for violation in islice(violations, VIOLATIONS_EXAMINED):
        found[violation.rule] += 1
        if found[violation.rule] <= VIOLATIONS_SHOWN:
            yield violation


def _is_late(before: StateWritten, event: StateWritten) -> bool:
    """Whether a write is confirmed late that was sent before the newer one: the leader waits for it no more.

    It may have taken effect before the newer one, also at a former owner. On the kafka engine an owner confirms what it
    had to look for in the log, because the broker's answer was lost. That reads find the newer state is the rule of
    `rules.stored_states`; `rules.fenced_logs` compares each confirmation with the log.
    """
    return event.sent_at < before.sent_at or (
        before.share_coordinator != event.share_coordinator and event.sent_at < before.time
    )
