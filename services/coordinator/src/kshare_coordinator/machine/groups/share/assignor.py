"""The SimpleShareAssignor of KIP-932, which assigns the partitions of a share group. Pure and deterministic.

Rules, after org.apache.kafka.coordinator.group.assignor.SimpleAssignor of Kafka 4.3.1:
- Every partition gets a member while there is one that subscribes to it, and as many members as every other one:
  ceil(members / partitions). So with more members than partitions, members share partitions and no member is idle.
- Members get equally many partitions, give or take one.
- A member keeps its partitions as far as these two rules allow.

Where all members have one subscription, the rules hold over all of its partitions together; where subscriptions
differ, they hold for each topic over the members that subscribe to it (as in Kafka).

How `_share_out` works: each member gets a quota, and the quotas add up to the partitions' places. Old pairs beyond the
quota or beyond the places are taken away, then free places go to the members that lack most. A member may be left that
lacks one and holds every partition that still has a place; then it takes a partition of another member, which takes the
place. Such a member always exists: it is full and does not hold that partition, so it holds one that the first lacks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from kshare_coordinator.machine.groups.assignment import Assignment
from kshare_core.identifiers import TopicPartition


def assign(
    subscriptions: Mapping[str, Iterable[bytes]],
    assignable: Mapping[bytes, Sequence[int]],
    previous: Mapping[str, Assignment],
) -> dict[str, Assignment]:
    """The target assignment of every member.

    `subscriptions` has each member's topic ids, `assignable` the partitions that may be assigned, `previous` the last
    target of those who had one. Does not depend on the order of any mapping.
    """
    wanted = {member: sorted(set(topics) & assignable.keys()) for member, topics in sorted(subscriptions.items())}
    pools = _pools(wanted, assignable)
    held: dict[str, set[TopicPartition]] = {member: set() for member in wanted}
    old = {
        member: {TopicPartition(topic_id, partition) for topic_id, parts in assignment.items() for partition in parts}
        for member, assignment in previous.items()
    }
    for members, partitions in pools:
        shares = _share_out(members, partitions, old, held)
        for member, share in shares.items():
            held[member] |= share
    return {member: _grouped(share) for member, share in held.items()}


def share_beside(
    topic_ids: Iterable[bytes],
    assignable: Mapping[bytes, Sequence[int]],
    others: Mapping[str, Assignment],
    member_count: int,
) -> Assignment:
    """The partitions that one member can have at once while the others lose none: at most an even share.

    It gets the partitions of its topics that fewest others have. `member_count` counts the member too.
    """
    wanted = [TopicPartition(topic, part) for topic in sorted(set(topic_ids)) for part in assignable.get(topic, ())]
    if not wanted:
        return {}
    held: dict[TopicPartition, int] = dict.fromkeys(wanted, 0)
    for assignment in others.values():
        for topic_id, partitions in assignment.items():
            for partition in partitions:
                key = TopicPartition(topic_id, partition)
                if key in held:
                    held[key] += 1
    places = -(-member_count // len(wanted)) * len(wanted)
    ranked = sorted(wanted, key=lambda key: (held[key], key))
    return _grouped(set(ranked[: -(-places // member_count)]))


def _pools(
    wanted: Mapping[str, list[bytes]], assignable: Mapping[bytes, Sequence[int]]
) -> list[tuple[list[str], list[TopicPartition]]]:
    """Members and the partitions to balance over them, one pool or one for each topic; see the module's text."""
    members = list(wanted)
    topics = sorted({topic_id for topic_ids in wanted.values() for topic_id in topic_ids})
    if all(topic_ids == topics for topic_ids in wanted.values()):
        pools = [(members, topics)]
    else:
        pools = [([member for member in members if topic in wanted[member]], [topic]) for topic in topics]
    return [
        (
            pool_members,
            [TopicPartition(topic, part) for topic in pool_topics for part in sorted(set(assignable[topic]))],
        )
        for pool_members, pool_topics in pools
    ]


def _grouped(share: set[TopicPartition]) -> Assignment:
    grouped: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(share):
        grouped.setdefault(topic_id, []).append(partition)
    return {topic_id: tuple(partitions) for topic_id, partitions in grouped.items()}


def _share_out(
    members: Sequence[str],
    partitions: Sequence[TopicPartition],
    old: Mapping[str, set[TopicPartition]],
    load: Mapping[str, set[TopicPartition]],
) -> dict[str, set[TopicPartition]]:
    """Balances one pool; `load` are the members' partitions of other pools."""
    if not members or not partitions:
        return {}
    sharing = -(-len(members) // len(partitions))
    valid = set(partitions)
    kept = {member: old.get(member, set()) & valid for member in members}
    quotas = _quotas(members, kept, load, sharing * len(partitions))
    holders: dict[TopicPartition, list[str]] = {partition: [] for partition in partitions}
    for member in members:
        for partition in sorted(kept[member]):
            holders[partition].append(member)
    _take_from_full_members(members, kept, holders, quotas)
    _take_from_full_partitions(kept, holders, quotas, sharing)
    _fill(kept, holders, quotas, sharing)
    return kept


def _quotas(
    members: Sequence[str],
    kept: Mapping[str, set[TopicPartition]],
    load: Mapping[str, set[TopicPartition]],
    places: int,
) -> dict[str, int]:
    """Partitions per member; the remainder goes to members with most partitions here, then with fewest elsewhere."""
    base, odd = divmod(places, len(members))
    ranked = sorted(members, key=lambda member: (-len(kept[member]), len(load[member]), member))
    return {member: base + (rank < odd) for rank, member in enumerate(ranked)}


def _take_from_full_members(
    members: Sequence[str],
    kept: dict[str, set[TopicPartition]],
    holders: dict[TopicPartition, list[str]],
    quotas: Mapping[str, int],
) -> None:
    for member in members:
        excess = len(kept[member]) - quotas[member]
        if excess > 0:
            crowded_first = sorted(kept[member], key=lambda partition: (-len(holders[partition]), partition))
            for partition in crowded_first[:excess]:
                kept[member].remove(partition)
                holders[partition].remove(member)


def _take_from_full_partitions(
    kept: dict[str, set[TopicPartition]],
    holders: dict[TopicPartition, list[str]],
    quotas: Mapping[str, int],
    sharing: int,
) -> None:
    for partition, names in holders.items():
        excess = len(names) - sharing
        if excess > 0:
            for member in sorted(names, key=lambda member: (quotas[member] - len(kept[member]), member))[:excess]:
                kept[member].remove(partition)
                names.remove(member)


def _fill(
    kept: dict[str, set[TopicPartition]],
    holders: dict[TopicPartition, list[str]],
    quotas: Mapping[str, int],
    sharing: int,
) -> None:
    lacking = [(len(held) - quotas[member], member) for member, held in kept.items() if len(held) < quotas[member]]
    heapq.heapify(lacking)
    for partition, names in holders.items():
        passed_over = []
        while len(names) < sharing and lacking:
            shortage, member = heapq.heappop(lacking)
            if member in names:
                passed_over.append((shortage, member))
                continue
            kept[member].add(partition)
            names.append(member)
            if shortage + 1 < 0:
                passed_over.append((shortage + 1, member))
        for entry in passed_over:
            heapq.heappush(lacking, entry)
    for shortage, member in sorted(lacking):
        for _ in range(-shortage):
            _exchange(member, kept, holders, sharing)


def _exchange(
    member: str, kept: dict[str, set[TopicPartition]], holders: dict[TopicPartition, list[str]], sharing: int
) -> None:
    """Gives `member` a partition of a giver that takes the place `member` cannot take; see the module's text."""
    partition = next(partition for partition, names in holders.items() if len(names) < sharing)
    for giver in sorted(kept, key=lambda name: (-len(kept[name]), name)):
        spare = sorted(kept[giver] - kept[member])
        if partition not in kept[giver] and spare:
            given = spare[0]
            kept[giver].remove(given)
            kept[giver].add(partition)
            kept[member].add(given)
            holders[given][holders[given].index(giver)] = member
            holders[partition].append(giver)
            return
