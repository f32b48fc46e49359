"""Whether what happened was allowed: the correctness rules of the design, section 6, over a recorded history.

Clients' knowledge is what counts: an acknowledgement is confirmed when its answer has arrived, a delivery may have
happened at any time between its request and its answer. Every rule is only applied where the history proves a breach.

Here are the rules of delivery; `log_rules` has those of the logs, `transaction_rules` those of transactions,
`dead_letter_rules` those of dead letters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations, islice, pairwise

from kshare_core.states import AcknowledgeType
from support.simulation.acknowledgement_rules import errors_took_no_effect
from support.simulation.dead_letter_rules import dead_letters_are_what_was_given_up
from support.simulation.evidence import NEVER, Evidence, Expectations, RecordKey, Sent, Violation
from support.simulation.history import Acquired, Delivered, History, StateWritten, describe
from support.simulation.log_rules import delivered_what_was_produced, nothing_deleted_comes_back, produced_exactly_once
from support.simulation.transaction_rules import committed_groups_get_committed_records, transactions_are_atomic

__all__ = ["Checker", "Expectations", "RecordKey", "Violation"]


class Checker:
    """`check` applies every rule."""

    def __init__(self, history: History, expectations: Expectations) -> None:
        self._evidence = Evidence(history, expectations)

    def check(self) -> list[Violation]:
        """Every breach, the worst rules first; at most three of each rule."""
        evidence = self._evidence
        rules = (
            self._no_delivery_after_confirmation(),
            produced_exactly_once(evidence),
            transactions_are_atomic(evidence),
            committed_groups_get_committed_records(evidence),
            delivered_what_was_produced(evidence),
            nothing_deleted_comes_back(evidence),
            self._nothing_skipped(),
            errors_took_no_effect(evidence),
            dead_letters_are_what_was_given_up(evidence),
            self._one_holder_at_once(),
            self._delivery_counts(),
            self._state_moves_forwards(),
            self._calm_runs_have_no_errors(),
        )
        violations: list[Violation] = []
        for rule in rules:
            violations.extend(islice(rule, 3))
        return violations

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
            ended = any(one.event.type != AcknowledgeType.RELEASE and one.may_have_effect for one in sent)
            highest = self._evidence.highest_count(key)
            if not ended and highest < limit:
                text = f"neither accepted nor rejected, and delivered with count {highest} of {limit}"
                yield self._evidence.violation("skipped", key, text)

    def _one_holder_at_once(self) -> Iterator[Violation]:
        """A record that is held, inside its lock, is not given to anybody else.

        The lock begins when the leader acquires, which for records that waited in a gateway is before the ShareFetch
        that delivers them.
        """
        lock = self._evidence.expected.lock_duration_s
        for key, events in self._evidence.deliveries.items():
            acquired = [self._acquired_at(key, event) for event in events]
            for (first, first_at), (second, second_at) in combinations(zip(events, acquired, strict=True), 2):
                start, end = min(first_at, second_at), max(first.time, second.time)
                if end - start >= lock or self._evidence.fault_between(start - lock, end):
                    continue
                if not self._given_up(key, first, start, end) and not self._given_up(key, second, start, end):
                    text = f"held twice: {describe(first)} and {describe(second)}"
                    yield self._evidence.violation("two holders", key, text)

    def _acquired_at(self, key: RecordKey, delivery: Delivered) -> float:
        """The earliest time at which the leader can have acquired what was delivered."""
        for event in reversed(self._evidence.acquired[key]):
            same = (event.run, event.delivery_count) == (delivery.run, delivery.delivery_count)
            if same and event.time <= delivery.time:
                return min(event.sent_at, delivery.sent_at)
        return delivery.sent_at

    def _given_up(self, key: RecordKey, event: Delivered, start: float, end: float) -> bool:
        """Whether the holder may have lost the record between the two times."""
        for sent in self._evidence.sent[key]:
            if sent.event.member == event.member and start <= sent.event.time <= end:
                return True
        ends = self._evidence.hold_ends[key.group, event.member]
        return any(gateway == event.gateway and start <= time <= end for time, gateway in ends)

    def _delivery_counts(self) -> Iterator[Violation]:
        """Counts are within the limit; a confirmed release is remembered, whatever dies; else they grow by one."""
        limit = self._evidence.expected.delivery_count_limit
        for key, events in self._evidence.acquired.items():
            over = [event for event in events if not 1 <= event.delivery_count <= limit]
            if over:
                yield self._evidence.violation("delivery count outside 1 to the limit", key, describe(over[0]))
            yield from self._counts_grow(key, events)
            yield from self._releases_are_remembered(key)

    def _counts_grow(self, key: RecordKey, events: Sequence[Acquired]) -> Iterator[Violation]:
        for before, after in pairwise(events):
            calm = not self._evidence.fault_between(
                before.sent_at - self._evidence.expected.lock_duration_s, after.time
            )
            if calm and after.sent_at > before.time and after.delivery_count <= before.delivery_count:
                text = f"{before.delivery_count}, then {after.delivery_count} at {after.time:.4f}, without a fault"
                yield self._evidence.violation("delivery count does not grow", key, text)

    def _releases_are_remembered(self, key: RecordKey) -> Iterator[Violation]:
        for sent in self._evidence.sent[key]:
            if sent.event.type != AcknowledgeType.RELEASE or not sent.confirmed or sent.answer is None:
                continue
            held = [
                event.delivery_count
                for event in self._evidence.deliveries[key]
                if event.member == sent.event.member and event.time <= sent.event.time
            ]
            for after in self._evidence.acquired[key]:
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
            newest[event.group, event.partition] = event
            if before is None:
                continue
            known_start = max(before.start_offset, -1)
            if event.start_offset == -1:
                newest[event.group, event.partition] = event._replace(start_offset=known_start)
            for name in ("state_epoch", "leader_epoch", "start_offset"):
                old, new = getattr(before, name), getattr(event, name)
                if new < old and new != -1:
                    text = f"{event.group}/{event.partition}: {name} {old} was followed by {new}"
                    yield Violation("state went back", text, [describe(before), describe(event)])

    def _calm_runs_have_no_errors(self) -> Iterator[Violation]:
        """Without faults, an acknowledgement inside the lock is never refused.

        The acknowledgements of a partition in one request succeed or fail together, so that all of them count.
        """
        if not self._evidence.expected.calm:
            return
        refused: dict[tuple[str, str, int, float], list[tuple[RecordKey, Sent]]] = defaultdict(list)
        for key, all_sent in self._evidence.sent.items():
            for sent in all_sent:
                if sent.answer is not None and sent.answer.error_code != 0:
                    refused[key.group, sent.event.member, key.partition, sent.event.time].append((key, sent))
        for together in refused.values():
            if all(self._certainly_held(key, sent) for key, sent in together):
                key, sent = together[0]
                text = f"{sent.answer}: {describe(sent.event)}"
                yield self._evidence.violation("acknowledgement refused without a reason", key, text)

    def _certainly_held(self, key: RecordKey, sent: Sent) -> bool:
        """Whether the member had the record, inside its lock, from before the acknowledgement until its answer."""
        held = [
            event
            for event in self._evidence.deliveries[key]
            if event.member == sent.event.member and event.time <= sent.event.time
        ]
        if not held or sent.answer is None:
            return False
        if sent.answer.time >= self._acquired_at(key, held[-1]) + self._evidence.expected.lock_duration_s:
            return False
        given_up = (other.event.time for other in self._evidence.sent[key] if other is not sent)
        lost = (
            time
            for time, gateway in self._evidence.hold_ends[key.group, sent.event.member]
            if gateway == held[-1].gateway
        )
        return not any(held[-1].time <= time <= sent.event.time for time in (*given_up, *lost))
