"""Which topics the members of consumer groups subscribe to: names, and regular expressions of RE2 (KIP-848).

An expression is looked up whole: a topic matches where all of its name does, and the client may describe it. Kafka does
that in the background, so the first assignment of a member that subscribes by an expression comes with a later
heartbeat; here it comes at once, and with the first heartbeat after a topic that matches was created.

`TopicExpressions` caches the matching topics for all groups together, and re-evaluates only topics that changed since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Protocol

import re2

from kshare_coordinator.machine.groups.consumer.values import Member, ResolvedExpression
from kshare_coordinator.machine.security.describable_topics import Client, DescribableTopics
from kshare_coordinator.machine.state import CoordinatorState
from kshare_coordinator.machine.visible_topics import visible_names, visible_topic_named
from kshare_core.errors import ErrorCode, KafkaError

EXPRESSIONS_REMEMBERED = 1_000
"""Limit over all groups; evicted entries are computed again when they are needed."""
EXPRESSION_MEMORY_BYTES = 1 << 20
"""What RE2 may use for one expression; one that needs more is refused."""


class _Pattern(Protocol):
    def fullmatch(self, text: str) -> object | None: ...


def compiled_expression(regex: str) -> _Pattern:
    """KafkaError INVALID_REGULAR_EXPRESSION where it is not in RE2's syntax, or too large."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = EXPRESSION_MEMORY_BYTES
    try:
        pattern: _Pattern = re2.compile(regex, options)
    except re2.error as error:
        text = f"SubscribedTopicRegex `{regex}` is not a valid regular expression of RE2: {error}"
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, text) from error
    return pattern


class TopicExpressions:
    """See the module's text. It has no state of its own: forgetting it changes no answer."""

    def __init__(self, state: CoordinatorState) -> None:
        self._state = state
        self._describable = DescribableTopics(state)
        self._known: dict[str, tuple[int, dict[str, None]]] = {}
        """By expression: the generation of topics, and the names that match."""

    def topics(self, regex: str, client: Client | None = None) -> tuple[str, ...]:
        """The names of the matching topics that the client may describe, in order; None may describe all.

        KafkaError if the expression is invalid.
        """
        names = sorted(self._matching(regex))
        return tuple(names) if client is None else self._describable.of(client, names)

    def _matching(self, regex: str) -> Iterable[str]:
        generation, matching = self._known.pop(regex, (-1, {}))
        if generation != self._state.topics_generation:
            pattern = compiled_expression(regex)
            behind = self._state.topics_generation - generation
            if generation < 0 or behind > len(self._state.topics_changed):
                matching = {name: None for name in visible_names(self._state) if pattern.fullmatch(name)}
            else:
                self._catch_up(pattern, matching, behind)
        self._known[regex] = (self._state.topics_generation, matching)
        if len(self._known) > EXPRESSIONS_REMEMBERED:
            del self._known[next(iter(self._known))]
        return matching

    def _catch_up(self, pattern: _Pattern, matching: dict[str, None], behind: int) -> None:
        for name in islice(reversed(self._state.topics_changed), behind):
            if visible_topic_named(self._state, name) is not None and pattern.fullmatch(name):
                matching[name] = None
            else:
                matching.pop(name, None)


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
