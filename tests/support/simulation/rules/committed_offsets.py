"""Rules of consumer groups: commits survive, go only forwards, and only those of current members count.

A commit without an answer may take effect or not, and for as long as its request may be under way also after later
ones, as in Kafka, where the requests of two connections pass each other. So a read may find it instead of a newer one.
A refusal says the same where the gateway may have repeated the commit, as Kafka's clients do themselves: an earlier try
without an answer may have taken effect.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from kshare_core.errors import ErrorCode
from kshare_rpc.coordinator_calls import FIRST_BACK_OFF_MS
from support.simulation.evidence import NEVER, Evidence, Violation
from support.simulation.history import CommitAnswered, CommitSent, CommittedRead, describe

REFUSED = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.GROUP_ID_NOT_FOUND,
)
"""Error codes of a commit after which this try of it has changed nothing."""


def committed_offsets_survive(evidence: Evidence) -> Iterator[Violation]:
    """Each read finds the newest confirmed commit, or one whose outcome nobody knows; never a forged one."""
    commits: dict[tuple[str, int], list[tuple[CommitSent, CommitAnswered | None]]] = defaultdict(list)
    answers = {event.commit_id: event for event in evidence.events if isinstance(event, CommitAnswered)}
    reads: dict[tuple[str, int], list[CommittedRead]] = defaultdict(list)
    for event in evidence.events:
        if isinstance(event, CommittedRead):
            reads[event.group, event.partition].append(event)
        elif isinstance(event, CommitSent):
            commits[event.group, event.partition].append((event, answers.get(event.commit_id)))
            if event.is_forged and event.commit_id in answers and not answers[event.commit_id].error_code:
                yield Violation("a forged commit was taken", describe(event))
    for place, all_commits in commits.items():
        yield from _forwards(all_commits)
        for read in reads[place]:
            before = [one for one in all_commits if one[0].time <= read.time]
            newest = max((sent.offset for sent, answer in before if _confirmed_at(answer) <= read.sent_at), default=-1)
            possible = {sent.offset for sent, answer in before if not sent.is_forged and not _is_refused(sent, answer)}
            unknown = {sent.offset for sent, answer in before if not sent.is_forged and _is_unknown(sent, answer)}
            if read.offset != newest and (
                read.offset not in possible or (read.offset < newest and read.offset not in unknown)
            ):
                excerpt = [describe(part) for one in all_commits for part in one if part is not None]
                text = f"{newest} was confirmed in time, and this was read: {describe(read)}"
                yield Violation("a commit was lost", text, excerpt[-40:])
                break


def _forwards(commits: list[tuple[CommitSent, CommitAnswered | None]]) -> Iterator[Violation]:
    """A confirmed commit is not below one that was confirmed before it was sent.

    Members begin at what is committed, and each is fenced before another one begins. Only a commit with an unknown
    outcome may have brought its successor back.
    """
    confirmed = sorted(
        ((_confirmed_at(answer), sent) for sent, answer in commits if _confirmed_at(answer) < NEVER),
        key=lambda one: one[0],
    )
    for at, sent in confirmed:
        newest = max((other.offset for other_at, other in confirmed if other_at <= sent.time), default=-1)
        unknown = any(
            other.offset < newest and _is_unknown(other, answer) for other, answer in commits if other.time <= at
        )
        if sent.offset < newest and not unknown:
            yield Violation("a commit went back", f"{newest} was confirmed before: {describe(sent)}")
            return


def _confirmed_at(answer: CommitAnswered | None) -> float:
    return NEVER if answer is None or answer.error_code else answer.time


def _is_refused(sent: CommitSent, answer: CommitAnswered | None) -> bool:
    """Refused at the first try: a later one is sent no sooner than after FIRST_BACK_OFF_MS."""
    if answer is None or answer.error_code not in REFUSED:
        return False
    return answer.time - sent.time < FIRST_BACK_OFF_MS / 1000


def _is_unknown(sent: CommitSent, answer: CommitAnswered | None) -> bool:
    return answer is None or (answer.error_code != 0 and not _is_refused(sent, answer))
