"""The server-side assignors of consumer groups (UniformAssignor and RangeAssignor).

Both give every partition of every subscribed topic to exactly one of its subscribers. The result depends on nothing
but the arguments.

- `range`, for each topic by itself: partitions in order, as contiguous ranges of equal length, to the subscribers in
  order (static members first, by instance id; then by member id); the first ones get one more where it does not come
  out even. Topics of equal size are co-partitioned. It does not look at what members had.
- `uniform`, over all topics: members keep their partitions as far as the balance allows.
  With equal subscriptions members' partition counts differ by at most one, and no partition moves that the
  balance does not ask for. With different subscriptions free partitions go to the subscriber with the fewest
  partitions, topics with the most partitions for each subscriber first; then, topic by topic, partitions move from the
  subscriber with the most to the one with the fewest, while they differ by more than one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kshare_coordinator.machine.groups.assignment import Assignment
from kshare_core.identifiers import TopicPartition

BALANCING_ROUNDS = 16
"""As UniformHeterogeneousAssignmentBuilder.MAX_ITERATION_COUNT; two or three are usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpec:
    """A member as an assignor sees it: the topics that it subscribes to and that exist, and its target so far."""

    topic_ids: Collection[bytes]
    instance_id: str = ""
    assignment: Assignment = field(default_factory=dict)


Assignor = Callable[[Mapping[str, MemberSpec], Mapping[bytes, int]], dict[str, Assignment]]
"""Takes members by id and the number of partitions of every topic that one of them subscribes to; gives each member's
target, an empty one too."""


def assign_range(members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]) -> dict[str, Assignment]:
    """The range assignor; see the module's text."""
    ordered = sorted(members, key=lambda member_id: _range_order(member_id, members[member_id]))
    found: dict[str, dict[bytes, tuple[int, ...]]] = {member_id: {} for member_id in ordered}
    for topic_id, subscribers in sorted(_subscribers(members, ordered).items()):
        count = partition_counts[topic_id]
        base, odd = divmod(count, len(subscribers))
        first = 0
        for rank, member_id in enumerate(subscribers):
            end = first + base + (rank < odd)
            if first < end:
                found[member_id][topic_id] = tuple(range(first, end))
            first = end
    return dict(found)


def _range_order(member_id: str, member: MemberSpec) -> tuple[bool, str]:
    return (False, member.instance_id) if member.instance_id else (True, member_id)


def assign_uniform(members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]) -> dict[str, Assignment]:
    """The uniform assignor; see the module's text."""
    if not members:
        return {}
    ordered = sorted(members)
    subscribers = _subscribers(members, ordered)
    held = {member_id: _kept(members[member_id], partition_counts) for member_id in ordered}
    if all(len(names) == len(ordered) for names in subscribers.values()):
        _share_equally(held, partition_counts)
    else:
        _Balance(held, subscribers, partition_counts).run()
    return {member_id: _grouped(share) for member_id, share in held.items()}


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
"""By the names that clients and group.consumer.assignors use."""


def _subscribers(members: Mapping[str, MemberSpec], ordered: Sequence[str]) -> dict[bytes, list[str]]:
    found: dict[bytes, list[str]] = {}
    for member_id in ordered:
        for topic_id in members[member_id].topic_ids:
            found.setdefault(topic_id, []).append(member_id)
    return found


def _kept(member: MemberSpec, partition_counts: Mapping[bytes, int]) -> set[TopicPartition]:
    """The member's partitions of the topics that it subscribes to."""
    topic_ids = set(member.topic_ids)
    return {
        TopicPartition(topic_id, partition)
        for topic_id, partitions in member.assignment.items()
        if topic_id in topic_ids
        for partition in partitions
        if partition < partition_counts[topic_id]
    }


def _grouped(share: set[TopicPartition]) -> Assignment:
    found: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(share):
        found.setdefault(topic_id, []).append(partition)
    return {topic_id: tuple(partitions) for topic_id, partitions in found.items()}


def _partitions(partition_counts: Mapping[bytes, int]) -> list[TopicPartition]:
    return [
        TopicPartition(topic_id, partition)
        for topic_id, count in sorted(partition_counts.items())
        for partition in range(count)
    ]


def _share_equally(held: dict[str, set[TopicPartition]], partition_counts: Mapping[bytes, int]) -> None:
    """All members subscribe to all topics: the odd partitions go to members that have more already."""
    partitions = _partitions(partition_counts)
    base, odd = divmod(len(partitions), len(held))
    by_size = sorted(held, key=lambda member_id: (-len(held[member_id]), member_id))
    quotas = {member_id: base + (rank < odd) for rank, member_id in enumerate(by_size)}
    for member_id, share in held.items():
        share.difference_update(sorted(share)[quotas[member_id] :])
    owned = set().union(*held.values())
    free = iter([partition for partition in partitions if partition not in owned])
    for member_id, share in held.items():
        while len(share) < quotas[member_id]:
            share.add(next(free))


class _Balance:
    """Members subscribe to different topics; changes `held`.

    `_by_topic` has the partitions of `held` again, in order. A look at a topic must not search all partitions of its
    subscribers: that is quadratic in the number of topics.
    """

    def __init__(
        self,
        held: dict[str, set[TopicPartition]],
        subscribers: Mapping[bytes, Sequence[str]],
        partition_counts: Mapping[bytes, int],
    ) -> None:
        self._held = held
        self._subscribers = subscribers
        self._counts = partition_counts
        self._by_topic = _partitions_by_topic(held, subscribers)
        self._topic_ids = sorted(
            subscribers,
            key=lambda topic_id: (
                -partition_counts[topic_id] / len(subscribers[topic_id]),
                len(subscribers[topic_id]),
                topic_id,
            ),
        )

    def run(self) -> None:
        owned = set().union(*self._held.values())
        for topic_id in self._topic_ids:
            self._give_out(topic_id, owned)
        for _ in range(BALANCING_ROUNDS):
            if not sum(self._balance(topic_id) for topic_id in self._topic_ids):
                return

    def _loads(self, topic_id: bytes) -> list[tuple[int, str]]:
        return [(len(self._held[member_id]), member_id) for member_id in self._subscribers[topic_id]]

    def _give_out(self, topic_id: bytes, owned: set[TopicPartition]) -> None:
        loads = self._loads(topic_id)
        heapq.heapify(loads)
        received: dict[str, list[TopicPartition]] = {}
        for number in range(self._counts[topic_id]):
            partition = TopicPartition(topic_id, number)
            if partition not in owned:
                load, member_id = loads[0]
                self._held[member_id].add(partition)
                received.setdefault(member_id, []).append(partition)
                heapq.heapreplace(loads, (load + 1, member_id))
        self._note_received(topic_id, received)

    def _balance(self, topic_id: bytes) -> int:
        """How many partitions of the topic were moved."""
        givable = self._by_topic[topic_id]
        fewest = self._loads(topic_id)
        heapq.heapify(fewest)
        most = [(-load, member_id) for load, member_id in fewest if givable.get(member_id)]
        heapq.heapify(most)
        moved = 0
        received: dict[str, list[TopicPartition]] = {}
        while most:
            load, giver = -most[0][0], most[0][1]
            least, taker = fewest[0]
            if load - least <= 1:
                break
            partition = givable[giver].pop()
            self._held[giver].remove(partition)
            self._held[taker].add(partition)
            received.setdefault(taker, []).append(partition)
            heapq.heapreplace(fewest, (least + 1, taker))
            if givable[giver]:
                heapq.heapreplace(most, (-(load - 1), giver))
            else:
                heapq.heappop(most)
            moved += 1
        self._note_received(topic_id, received)
        return moved

    def _note_received(self, topic_id: bytes, received: Mapping[str, list[TopicPartition]]) -> None:
        """Not before the end of a step: what a member received in it, it does not give away in it."""
        held = self._by_topic[topic_id]
        for member_id, partitions in received.items():
            held[member_id] = sorted([*held.get(member_id, ()), *partitions])


def _partitions_by_topic(
    held: Mapping[str, set[TopicPartition]], topic_ids: Iterable[bytes]
) -> dict[bytes, dict[str, list[TopicPartition]]]:
    found: dict[bytes, dict[str, list[TopicPartition]]] = {topic_id: {} for topic_id in topic_ids}
    for member_id, share in held.items():
        for partition in sorted(share):
            found[partition.topic_id].setdefault(member_id, []).append(partition)
    return found
