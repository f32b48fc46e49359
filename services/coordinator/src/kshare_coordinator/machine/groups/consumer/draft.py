"""ConsumerGroupDraft, a pending change of one consumer group: its rows after the change, and the records for it.

A draft begins with the group's own tables and copies a table when it first changes it. The rules that tie a group
together (GroupMetadataManager of Kafka 4.3.1):
- A new subscription, and any change of the subscribed topics, raises the group epoch by one (`settle`).
- Whenever the group epoch is above the assignment epoch, the targets are recomputed for all members, at most once
  in consumer.assignment.interval.ms (`assign`).
- An expression that no member subscribes to is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kshare_coordinator.machine.commands import ExpressionRefused
from kshare_coordinator.machine.groups.assignment import Assignment
from kshare_coordinator.machine.groups.consumer import records as group_records
from kshare_coordinator.machine.groups.consumer.assignors import ASSIGNORS, MemberSpec
from kshare_coordinator.machine.groups.consumer.subscriptions import (
    TopicExpressions,
    existing_topics,
    metadata_hash,
    topics_of_member,
)
from kshare_coordinator.machine.groups.consumer.values import (
    ConsumerGroup,
    CurrentAssignment,
    Member,
    ResolvedExpression,
)
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.security.describable_topics import Client
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.errors import KafkaError

Subscription = tuple[tuple[str, ...], str]
"""Topic names and a regular expression."""


def _subscription(member: Member) -> Subscription:
    return member.subscribed_topic_names, member.subscribed_topic_regex


def preferred_assignor(wishes: Mapping[str, int], default: str) -> str:
    """What most members ask for (`wishes` counts them); of equals the first by name."""
    return min(wishes, key=lambda name: (-wishes[name], name), default=default)


class Resolution(NamedTuple):
    """What came of the expressions: whether the topics of any changed, which need more time, which are invalid now."""

    changed: bool
    unfinished: frozenset[str] = frozenset()
    refused: tuple[ExpressionRefused, ...] = ()


class ConsumerGroupDraft:
    """See the module's text."""

    def __init__(self, state: CoordinatorState, group: ConsumerGroup, records: Iterable[Record] = ()) -> None:
        self._state = state
        self._old = group
        self._group_id = group.group_id
        self.records = list(records)
        """In the order in which they are to be replayed."""
        self.members: Mapping[str, Member] = group.members
        self.targets: Mapping[str, Assignment] = group.targets
        self.expressions: Mapping[str, ResolvedExpression] = group.expressions
        self.epoch = group.epoch
        self.assignment_epoch = group.assignment_epoch

    def remove_member(self, member_id: str) -> None:
        self.members = {name: member for name, member in self.members.items() if name != member_id}
        self.targets = {name: target for name, target in self.targets.items() if name != member_id}
        self.records += group_records.records_without_member(self._group_id, member_id)

    def put_member(self, member_id: str, member: Member) -> None:
        if self.members.get(member_id) != member:
            self.members = {**self.members, member_id: member}
            self.records.append(group_records.member(self._group_id, member_id, member))

    def put_current(self, member_id: str, current: CurrentAssignment) -> None:
        self.records.append(group_records.current(self._group_id, member_id, current))

    def replace_member(self, old_id: str, new_id: str, current: CurrentAssignment) -> None:
        """Moves a static member to another id (or its own), keeping its rows, with `current` as assignment."""
        member, target = self.members[old_id], self.targets.get(old_id, {})
        self.remove_member(old_id)
        self.put_member(new_id, member)
        self._put_target(new_id, target)
        self.put_current(new_id, current)

    def forget_expressions(self) -> None:
        """Removes the expressions without subscribers."""
        wanted = {member.subscribed_topic_regex for member in self.members.values()}
        for regex in sorted(self.expressions):
            if regex not in wanted:
                self._put_expression(regex, None)

    def resolve_expressions(
        self, topics: TopicExpressions, client: Client | None, now_ms: int, only: frozenset[str] | None = None
    ) -> Resolution:
        """Resolves all expressions, or `only` these, for this client.

        One whose lookup needs more time keeps what it had. So does a known one that is invalid: an earlier version
        accepted larger ones.
        """
        self.forget_expressions()
        changed, unfinished, refused = False, set(), []
        wanted = sorted({member.subscribed_topic_regex for member in self.members.values()} - {""})
        for regex in wanted:
            if only is not None and regex not in only:
                continue
            known = self.expressions.get(regex)
            try:
                names = topics.topics(regex, client, now_ms)
            except KafkaError as error:
                if known is None:
                    raise
                if topics.is_first_refusal(regex):
                    refused.append(ExpressionRefused(group_id=self._group_id, regex=regex, reason=str(error)))
                continue
            if names is None:
                unfinished.add(regex)
            elif known is None or known.topics != names:
                found = ResolvedExpression(topics=names, version=self._state.version, timestamp_ms=now_ms)
                self._put_expression(regex, found)
                changed = True
        return Resolution(changed, frozenset(unfinished), tuple(refused))

    def settle(self, *, changed: bool) -> None:
        """Raises the group epoch if members, subscriptions or topics changed."""
        names = {name for topics in self._subscriptions().values() for name in topics}
        new_hash = metadata_hash(self._state, names)
        if changed or new_hash != self._old.metadata_hash:
            self.epoch += 1
            self.records.append(group_records.metadata(self._group_id, self.epoch, new_hash))

    def assignor(self, default: str) -> str:
        """The one to compute targets with."""
        wishes: dict[str, int] = {}
        for member in self.members.values():
            if member.server_assignor:
                wishes[member.server_assignor] = wishes.get(member.server_assignor, 0) + 1
        return preferred_assignor(wishes, default)

    def assign(self, assignor: str, now_ms: int) -> None:
        """Computes the targets for the group epoch."""
        subscriptions = {
            subscription: existing_topics(self._state, names) for subscription, names in self._subscriptions().items()
        }
        counts = {topic_id: count for topics in subscriptions.values() for topic_id, count in topics.items()}
        specs = {
            member_id: MemberSpec(
                topic_ids=subscriptions[_subscription(member)].keys(),
                instance_id=member.instance_id,
                assignment=self.targets.get(member_id, {}),
            )
            for member_id, member in self.members.items()
        }
        old = self.targets
        self.targets = ASSIGNORS[assignor](specs, counts)
        self.records += [
            group_records.target(self._group_id, member_id, target)
            for member_id, target in sorted(self.targets.items())
            if old.get(member_id) != target
        ]
        self.assignment_epoch = self.epoch
        self.records.append(group_records.assignment_epoch(self._group_id, self.epoch, now_ms))

    def _subscriptions(self) -> dict[Subscription, list[str]]:
        """The topics of each subscription that members have; most groups have one."""
        return {
            _subscription(member): topics_of_member(member, self.expressions)
            for member in {_subscription(member): member for member in self.members.values()}.values()
        }

    def _put_target(self, member_id: str, target: Assignment) -> None:
        self.targets = {**self.targets, member_id: target}
        self.records.append(group_records.target(self._group_id, member_id, target))

    def _put_expression(self, regex: str, expression: ResolvedExpression | None) -> None:
        kept = {name: known for name, known in self.expressions.items() if name != regex}
        self.expressions = kept if expression is None else {**kept, regex: expression}
        self.records.append(group_records.expression(self._group_id, regex, expression))
