"""Rules of dead letters: a group's dead-letter topic holds each record that was given up, once, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kshare_core.states import AcknowledgeType
from support.simulation.evidence import DeadLetter, Evidence, RecordKey, Violation


def dead_letters_are_what_was_given_up(evidence: Evidence) -> Iterator[Violation]:
    """Given up is what was rejected, and what reached its delivery limit without an end."""
    for group, letters in evidence.expected.dead_letters.items():
        first: dict[RecordKey, DeadLetter] = {}
        for letter in letters:
            if letter.key in first:
                yield evidence.violation("two dead letters of one record", letter.key, f"{first[letter.key]}, {letter}")
            first.setdefault(letter.key, letter)
        yield from _were_given_up(evidence, group, list(first.values()))
        for key in evidence.deliverable():
            if key.group == group and key not in first and _was_given_up(evidence, key):
                yield evidence.violation(
                    "given up without a dead letter", key, f"{len(letters)} other records have one"
                )


def _was_given_up(evidence: Evidence, key: RecordKey) -> bool:
    """Whether the history proves it, of a record that has come to its end."""
    sent = evidence.sent[key]
    if any(one.event.type == AcknowledgeType.REJECT and one.confirmed for one in sent):
        return True
    return not any(one.event.type == AcknowledgeType.ACCEPT and one.may_have_effect for one in sent)


def _were_given_up(evidence: Evidence, group: str, letters: Sequence[DeadLetter]) -> Iterator[Violation]:
    values = {
        (partition, record.offset): record.value
        for partition, records in evidence.expected.logs.items()
        for record in records
    }
    for letter in letters:
        key, sent = letter.key, evidence.sent[letter.key]
        rejected = any(one.event.type == AcknowledgeType.REJECT and one.may_have_effect for one in sent)
        exhausted = evidence.highest_count(key) >= evidence.expected.delivery_count_limit
        accepted = any(
            one.event.type == AcknowledgeType.ACCEPT
            and one.confirmed
            # An acknowledgement of what is gone is taken and does nothing.
            and not evidence.may_be_deleted(key, one.ended_at)
            for one in sent
        )
        if key.group != group or accepted or not (rejected or exhausted):
            yield evidence.violation("a dead letter of a record that was not given up", key, f"in {group}'s: {letter}")
        value = values.get((key.partition, key.offset))
        if value is not None and letter.value != value:
            text = f"{letter}; the log has {value!r} there"
            yield evidence.violation("a dead letter with another record's value", key, text)
