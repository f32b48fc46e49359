"""Rules of consumer groups: commits survive, go only forwards, and only those of current members count.

A commit without an answer may take effect or not, and for as long as its request may be under way also after later
ones, as in Kafka, where the requests of two connections pass each other. So a read may find it instead of a newer one.
Any answer says the same where the gateway repeated the commit after a failed call, as Kafka's clients do themselves:
the earlier try may have taken effect, or may do so later.

A commit in a transaction counts as sent when its producer asks for the commit of the transaction. One that was aborted
has an offset of its own, which no read may find.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from kshare_core.errors import ErrorCode
from support.simulation.evidence import NEVER, Evidence, Violation
from support.simulation.history import CommitAnswered, CommitSent, CommittedRead, CommitTryLost, describe

NOTHING = -1
"""What a read finds where nothing is committed."""
REFUSED = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)
"""Error codes of a commit after which this try of it has changed nothing."""


class _Commit(NamedTuple):
    sent: CommitSent
    answer: CommitAnswered | None
    has_lost_try: bool
    """A try of it failed at the gateway, and may arrive later than the one that was answered."""

    @property
    def confirmed_at(self) -> float:
        return NEVER if self.answer is None or self.answer.error_code else self.answer.time

    @property
    def is_refused(self) -> bool:
        """Nothing of it takes effect."""
        return self.sent.is_aborted or (
            self.answer is not None and self.answer.error_code in REFUSED and not self.has_lost_try
        )

    @property
    def is_unknown(self) -> bool:
        """It may take effect later than its answer came, or without one."""
        if self.sent.is_aborted:
            return False
        if self.answer is None or self.has_lost_try:
            return True
        return self.answer.error_code != 0 and not self.is_refused


def committed_offsets_survive(evidence: Evidence) -> Iterator[Violation]:
    """Each read finds the newest confirmed commit, or one whose outcome nobody knows; never a forged one."""
    reads: dict[tuple[str, int], list[CommittedRead]] = defaultdict(list)
    for event in evidence.events:
        if isinstance(event, CommittedRead):
            reads[event.group, event.partition].append(event)
    commits = _commits(evidence)
    for all_commits in commits.values():
        for one in all_commits:
            if one.sent.is_forged and one.answer is not None and not one.answer.error_code:
                yield Violation("a forged commit was taken", describe(one.sent))
    for place, all_commits in commits.items():
        yield from _forwards(all_commits)
        aborted = {one.sent.offset: one.sent for one in all_commits if one.sent.is_aborted}
        found = next((read for read in reads[place] if read.offset in aborted), None)
        if found is not None:
            yield Violation("an aborted commit was found", f"{describe(found)}: {describe(aborted[found.offset])}")
        for read in reads[place]:
            before = [one for one in all_commits if one.sent.time <= read.time]
            if not _may_find(read, before):
                newest = max((one.sent.offset for one in before if one.confirmed_at <= read.sent_at), default=-1)
                parts = [part for one in all_commits for part in (one.sent, one.answer) if part is not None]
                text = f"{newest} was confirmed in time, and this was read: {describe(read)}"
                yield Violation("a commit was lost", text, [describe(part) for part in parts][-40:])
                break


def _may_find(read: CommittedRead, before: list[_Commit]) -> bool:
    """Whether a read may find what it found, of the commits that were sent before it ended.

    It may not find one that another has replaced: that was sent after the first was confirmed, and was confirmed before
    the read began. `_forwards` is about the order of the offsets.
    """
    confirmed = [one for one in before if one.confirmed_at <= read.sent_at]
    if read.offset == NOTHING:
        return not confirmed
    return any(
        one.is_unknown or not any(other.sent.time >= one.confirmed_at and other is not one for other in confirmed)
        for one in before
        if one.sent.offset == read.offset and not one.sent.is_forged and not one.is_refused
    )


def _commits(evidence: Evidence) -> dict[tuple[str, int], list[_Commit]]:
    """All commits by group and partition, in the order in which they were sent."""
    answers = {event.commit_id: event for event in evidence.events if isinstance(event, CommitAnswered)}
    lost: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for event in evidence.events:
        if isinstance(event, CommitTryLost):
            lost[event.group, event.partition, event.offset].append(event.time)
    commits: dict[tuple[str, int], list[_Commit]] = defaultdict(list)
    for event in evidence.events:
        if isinstance(event, CommitSent):
            answer = answers.get(event.commit_id)
            until = NEVER if answer is None else answer.time
            times = lost[event.group, event.partition, event.offset]
            has_lost_try = any(event.time <= time <= until for time in times)
            commits[event.group, event.partition].append(_Commit(event, answer, has_lost_try))
    return commits


def _forwards(commits: list[_Commit]) -> Iterator[Violation]:
    """A confirmed commit is not below one that was confirmed before it was sent.

    Members begin at what is committed, and each is fenced before another one begins. Only a commit with an unknown
    outcome may have brought its successor back.
    """
    confirmed = sorted((one for one in commits if one.confirmed_at < NEVER), key=lambda one: one.confirmed_at)
    for one in confirmed:
        sent = one.sent
        newest = max((other.sent.offset for other in confirmed if other.confirmed_at <= sent.time), default=-1)
        unknown = any(
            other.sent.offset < newest and other.is_unknown for other in commits if other.sent.time <= one.confirmed_at
        )
        if sent.offset < newest and not unknown:
            yield Violation("a commit went back", f"{newest} was confirmed before: {describe(sent)}")
            return
