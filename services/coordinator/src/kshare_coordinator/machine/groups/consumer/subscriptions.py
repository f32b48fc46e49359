"""Which topics the members of consumer groups subscribe to: names, and regular expressions of RE2 (KIP-848).

An expression is looked up whole: a topic matches where all of its name does, and the client may describe it. Kafka does
that in the background, so the first assignment of a member that subscribes by an expression comes with a later
heartbeat; here it usually comes at once, and with the first heartbeat after a topic that matches was created.

`TopicExpressions` caches the matching topics for all groups together, and re-evaluates only topics that changed since.
All lookups together take at most STEPS_PER_SECOND, so that no expression holds up the coordinator. A lookup that needs
more goes on with the next heartbeats, of any group; the group keeps the topics that it knows until then. Lookups take
turns of STEPS_OF_TURN, first turns alternate with later ones: costly expressions do not hold up the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from kshare_coordinator.machine.groups.consumer.values import Member, ResolvedExpression
from kshare_coordinator.machine.regular_expressions import InvalidExpression, RegularExpression
from kshare_coordinator.machine.security.describable_topics import Client, DescribableTopics
from kshare_coordinator.machine.state import CoordinatorState
from kshare_coordinator.machine.visible_topics import visible_names, visible_topic_named
from kshare_core.errors import ErrorCode, KafkaError

EXPRESSIONS_REMEMBERED = 1_000
"""Limit over all groups; evicted entries are computed again when they are needed."""
STEPS_PER_SECOND = 250_000_000
"""About a third of a second, the worst expressions given; 10,000 topics take an ordinary one a tenth of it."""
STEPS_AT_ONCE = 320_000_000
"""What unused time adds up to: about half a second."""
STEPS_OF_TURN = STEPS_AT_ONCE // 2
"""An alternative of 200 names is compared with 10,000 topics in one turn."""
DEMAND_LASTS_MS = 30_000
"""A group that still needs an expression asks for it with each heartbeat."""


def checked_expression(regex: str) -> RegularExpression:
    """KafkaError INVALID_REGULAR_EXPRESSION where it is not in RE2's syntax, or too large."""
    try:
        return RegularExpression(regex)
    except InvalidExpression as invalid:
        text = f"SubscribedTopicRegex `{regex[:200]}` is not a valid regular expression of RE2: {invalid}"
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, text) from invalid


@dataclass(slots=True)
class _Lookup:
    """The comparison of an expression with topics' names, which may go on in later turns.

    `generation` is that of the topics when it began; `position` is how many of the names are done.
    """

    expression: RegularExpression
    generation: int
    matching: dict[str, None]
    names: Sequence[str]
    position: int = 0


@dataclass(slots=True)
class _Waiting:
    """An expression that is to be looked up; `demanded_ms` is when a group last asked for it."""

    demanded_ms: int
    lookup: _Lookup | None = None


class TopicExpressions:
    """See the module's text. It has no state of its own: forgetting it only delays answers."""

    def __init__(self, state: CoordinatorState) -> None:
        self._state = state
        self._describable = DescribableTopics(state)
        self._known: dict[str, tuple[int, dict[str, None]]] = {}
        """By expression: the generation of topics, and the names that match."""
        self._waiting: dict[str, _Waiting] = {}
        """By expression, the one whose turn was longest ago first."""
        self._names: tuple[int, Sequence[str]] = (-1, ())
        """A generation of topics, and all their names: lookups share them."""
        self._refused: set[str] = set()
        self._is_new_next = True
        """Whether the next turn is for an expression that had none yet."""
        self._steps_left = STEPS_AT_ONCE
        self._counted_ms: int | None = None

    def topics(self, regex: str, client: Client | None, now_ms: int) -> tuple[str, ...] | None:
        """The names of the matching topics that the client may describe, in order; None: not known yet.

        A `client` of None may describe all. KafkaError if the expression is invalid.
        """
        matching = self._matching(regex, now_ms)
        if matching is None:
            return None
        names = sorted(matching)
        return tuple(names) if client is None else self._describable.of(client, names)

    def is_first_refusal(self, regex: str) -> bool:
        """Whether this invalid expression was not asked for before; a bounded number of them is told."""
        if regex in self._refused or len(self._refused) >= EXPRESSIONS_REMEMBERED:
            return False
        self._refused.add(regex)
        return True

    def _matching(self, regex: str, now_ms: int) -> Iterable[str] | None:
        if not self._is_known(regex):
            checked_expression(regex)
            self._forget_undemanded(now_ms)
            if regex in self._waiting:
                self._waiting[regex].demanded_ms = now_ms
            elif len(self._waiting) < EXPRESSIONS_REMEMBERED:
                self._waiting[regex] = _Waiting(now_ms)
            self._count_time(now_ms)
            self._look_up()
        if not self._is_known(regex):
            return None
        generation, matching = self._known.pop(regex)
        self._known[regex] = generation, matching
        return matching

    def _is_known(self, regex: str) -> bool:
        return regex in self._known and self._known[regex][0] == self._state.topics_generation

    def _count_time(self, now_ms: int) -> None:
        passed_ms = 0 if self._counted_ms is None else max(0, now_ms - self._counted_ms)  # the clock may be set back
        self._counted_ms = now_ms
        self._steps_left = min(STEPS_AT_ONCE, self._steps_left + passed_ms * STEPS_PER_SECOND // 1_000)

    def _forget_undemanded(self, now_ms: int) -> None:
        for regex, waiting in list(self._waiting.items()):
            waiting.demanded_ms = min(waiting.demanded_ms, now_ms)  # the clock may be set back
            if now_ms - waiting.demanded_ms > DEMAND_LASTS_MS:
                del self._waiting[regex]

    def _look_up(self) -> None:
        """Gives turns to the expressions that wait, as far as the steps that are left allow."""
        while self._waiting and self._steps_left > 0:
            regex = self._next()
            waiting = self._waiting.pop(regex)
            lookup = waiting.lookup or self._begun(regex)
            if not self._go_on(lookup):
                self._waiting[regex] = _Waiting(waiting.demanded_ms, lookup)
                continue
            self._known[regex] = lookup.generation, lookup.matching
            if not self._is_known(regex):  # topics changed meanwhile
                self._waiting[regex] = _Waiting(waiting.demanded_ms)
            if len(self._known) > EXPRESSIONS_REMEMBERED:
                del self._known[next(iter(self._known))]

    def _next(self) -> str:
        """Alternately the newest without a turn yet, and the first in line: many that wait do not delay a new one."""
        is_new_next, self._is_new_next = self._is_new_next, not self._is_new_next
        first = next(iter(self._waiting))
        if not is_new_next:
            return first
        return next((regex for regex in reversed(self._waiting) if self._waiting[regex].lookup is None), first)

    def _begun(self, regex: str) -> _Lookup:
        """With the topics that changed since the last time, where they can be told."""
        now = self._state.topics_generation
        generation, matching = self._known.pop(regex, (-1, {}))
        behind = now - generation
        if generation < 0 or behind > len(self._state.topics_changed):
            if self._names[0] != now:
                self._names = now, tuple(visible_names(self._state))
            return _Lookup(checked_expression(regex), now, {}, self._names[1])
        names = tuple(islice(reversed(self._state.topics_changed), behind))
        return _Lookup(checked_expression(regex), now, matching, names)

    def _go_on(self, lookup: _Lookup) -> bool:
        """One turn; whether it is finished."""
        least_left = max(0, self._steps_left - STEPS_OF_TURN)
        while lookup.position < len(lookup.names):
            if self._steps_left <= least_left:
                return False
            name = lookup.names[lookup.position]
            lookup.position += 1
            self._steps_left -= lookup.expression.cost(name)
            if visible_topic_named(self._state, name) is not None and lookup.expression.matches(name):
                lookup.matching[name] = None
            else:
                lookup.matching.pop(name, None)
        return True


def topics_of_member(member: Member, expressions: Mapping[str, ResolvedExpression]) -> list[str]:
    """Names, each once; whether the topics exist is not asked."""
    resolved = expressions.get(member.subscribed_topic_regex) if member.subscribed_topic_regex else None
    return list(dict.fromkeys([*member.subscribed_topic_names, *(resolved.topics if resolved else ())]))


def existing_topics(state: CoordinatorState, names: Iterable[str]) -> dict[bytes, int]:
    """Numbers of partitions by topic id, of the topics that exist."""
    found = {}
    for name in names:
        topic = visible_topic_named(state, name)
        if topic is not None:
            found[topic.topic_id] = len(topic.placements)
    return found


def metadata_hash(state: CoordinatorState, names: Iterable[str]) -> int:
    """A hash that changes when one of these topics is created, deleted, recreated or grows; 0: none exists."""
    topics = sorted(existing_topics(state, names).items())
    if not topics:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for topic_id, count in topics:
        digest.update(topic_id + count.to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True)
