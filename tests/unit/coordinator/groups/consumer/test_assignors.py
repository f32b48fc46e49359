"""Range and uniform assignors: tables, and the properties of every assignment."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kshare_coordinator.machine.groups.assignment import Assignment
from kshare_coordinator.machine.groups.consumer.assignors import (
    ASSIGNORS,
    BALANCING_ROUNDS,
    MemberSpec,
    assign_range,
    assign_uniform,
)

T, U, V = b"t", b"u", b"v"


def spec(*topic_ids: bytes, has: Assignment | None = None, instance_id: str = "") -> MemberSpec:
    return MemberSpec(topic_ids=topic_ids, assignment=has or {}, instance_id=instance_id)


@pytest.mark.parametrize(
    ("members", "counts", "expected"),
    [
        ({}, {}, {}),
        ({"a": spec()}, {}, {"a": {}}),
        ({"a": spec(T), "b": spec(T)}, {T: 3}, {"a": {T: (0, 1)}, "b": {T: (2,)}}),
        ({"a": spec(T), "b": spec(T), "c": spec(T)}, {T: 2}, {"a": {T: (0,)}, "b": {T: (1,)}, "c": {}}),
        (  # equal sizes are co-partitioned
            {"a": spec(T, U), "b": spec(T, U)},
            {T: 4, U: 4},
            {"a": {T: (0, 1), U: (0, 1)}, "b": {T: (2, 3), U: (2, 3)}},
        ),
        (  # only subscribers count
            {"a": spec(T), "b": spec(T, U), "c": spec(U)},
            {T: 3, U: 3},
            {"a": {T: (0, 1)}, "b": {T: (2,), U: (0, 1)}, "c": {U: (2,)}},
        ),
        (  # static members come first, by instance id, whatever their member ids are
            {"a": spec(T), "b": spec(T, instance_id="2"), "c": spec(T, instance_id="1")},
            {T: 4},
            {"a": {T: (3,)}, "b": {T: (2,)}, "c": {T: (0, 1)}},
        ),
    ],
)
def test_range(
    members: dict[str, MemberSpec], counts: dict[bytes, int], expected: dict[str, dict[bytes, tuple[int, ...]]]
) -> None:
    assert assign_range(members, counts) == expected


@pytest.mark.parametrize(
    ("members", "counts", "expected"),
    [
        ({}, {}, {}),
        ({"a": spec()}, {}, {"a": {}}),
        ({"a": spec(T), "b": spec(T)}, {T: 3}, {"a": {T: (0, 1)}, "b": {T: (2,)}}),
        # over all topics, not for each one
        ({"a": spec(T, U), "b": spec(T, U)}, {T: 1, U: 1}, {"a": {T: (0,)}, "b": {U: (0,)}}),
        # who has more keeps it: nothing moves
        ({"a": spec(T), "b": spec(T, has={T: (1, 2)})}, {T: 3}, {"a": {T: (0,)}, "b": {T: (1, 2)}}),
        # a new member gets no more than its share
        ({"a": spec(T, has={T: (0, 1, 2, 3)}), "b": spec(T)}, {T: 4}, {"a": {T: (0, 1)}, "b": {T: (2, 3)}}),
        # what is not subscribed to any more, and partitions that are gone, are lost
        ({"a": spec(T, has={U: (0,), T: (7,)})}, {T: 1}, {"a": {T: (0,)}}),
        # different subscriptions: U can only be b's, so a gets more of T
        ({"a": spec(T), "b": spec(T, U)}, {T: 4, U: 2}, {"a": {T: (0, 1, 2)}, "b": {T: (3,), U: (0, 1)}}),
    ],
)
def test_uniform(
    members: dict[str, MemberSpec], counts: dict[bytes, int], expected: dict[str, dict[bytes, tuple[int, ...]]]
) -> None:
    assert assign_uniform(members, counts) == expected


COUNTS = st.dictionaries(st.sampled_from([T, U, V]), st.integers(1, 9), min_size=1)


@st.composite
def groups(draw: st.DrawFn, *, homogeneous: bool) -> tuple[dict[str, MemberSpec], dict[bytes, int]]:
    """Members whose former targets do not overlap, as targets of a group never do."""
    counts = draw(COUNTS)
    names = draw(st.lists(st.sampled_from("abcdefg"), min_size=1, unique=True))
    owners = {
        (topic_id, partition): draw(st.sampled_from([*names, ""]))
        for topic_id, count in counts.items()
        for partition in range(count + 1)  # one that is not there any more
    }
    members = {}
    for name in names:
        topics = sorted(counts) if homogeneous else draw(st.lists(st.sampled_from(sorted(counts)), unique=True))
        had: dict[bytes, list[int]] = {}
        for (topic_id, partition), owner in sorted(owners.items()):
            if owner == name:
                had.setdefault(topic_id, []).append(partition)
        members[name] = spec(*topics, has={topic_id: tuple(numbers) for topic_id, numbers in had.items()})
    subscribed = {topic_id for member in members.values() for topic_id in member.topic_ids}
    return members, {topic_id: count for topic_id, count in counts.items() if topic_id in subscribed}


def pairs(assignment: Assignment) -> set[tuple[bytes, int]]:
    return {(topic_id, partition) for topic_id, partitions in assignment.items() for partition in partitions}


def check_complete(
    members: Mapping[str, MemberSpec], counts: Mapping[bytes, int], found: Mapping[str, Assignment]
) -> None:
    """Every partition of every subscribed topic has one owner, who subscribes to the topic."""
    assert found.keys() == members.keys()
    given_out = [pair for assignment in found.values() for pair in sorted(pairs(assignment))]
    assert sorted(given_out) == sorted((topic, number) for topic, count in counts.items() for number in range(count))
    for name, assignment in found.items():
        assert set(assignment) <= set(members[name].topic_ids)
        assert all(partitions and list(partitions) == sorted(partitions) for partitions in assignment.values())


@settings(max_examples=300, deadline=None)
@given(group=st.one_of(groups(homogeneous=True), groups(homogeneous=False)), name=st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_has_one_owner_that_subscribes(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]], name: str
) -> None:
    members, counts = group
    check_complete(members, counts, ASSIGNORS[name](members, counts))


@settings(max_examples=300, deadline=None)
@given(group=groups(homogeneous=False))
def test_range_gives_each_topic_in_equal_contiguous_parts(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]],
) -> None:
    members, counts = group
    found = assign_range(members, counts)
    for topic_id in counts:
        parts = [found[name].get(topic_id, ()) for name in sorted(members) if topic_id in members[name].topic_ids]
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)
        assert [number for part in parts for number in part] == list(range(counts[topic_id]))


@settings(max_examples=300, deadline=None)
@given(group=groups(homogeneous=True))
def test_uniform_is_balanced_and_moves_as_little_as_the_balance_allows(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]],
) -> None:
    members, counts = group
    found = assign_uniform(members, counts)
    sizes = {name: len(pairs(assignment)) for name, assignment in found.items()}
    assert max(sizes.values()) - min(sizes.values()) <= 1
    held = {
        name: {pair for pair in pairs(member.assignment) if pair[1] < counts[pair[0]]}
        for name, member in members.items()
    }
    base, odd = divmod(sum(counts.values()), len(members))
    most_kept = sum(min(len(pairs_held), base) for pairs_held in held.values())
    most_kept += min(odd, sum(len(pairs_held) > base for pairs_held in held.values()))
    assert sum(len(held[name] & pairs(found[name])) for name in members) == most_kept


@settings(max_examples=300, deadline=None)
@given(group=groups(homogeneous=False))
def test_uniform_leaves_no_move_that_would_balance_better(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]],
) -> None:
    members, counts = group
    found = assign_uniform(members, counts)
    sizes = {name: len(pairs(assignment)) for name, assignment in found.items()}
    for giver in members:
        for topic_id in found[giver]:
            for taker in members:
                if topic_id in members[taker].topic_ids:
                    assert sizes[giver] - sizes[taker] <= 1, (giver, taker, topic_id, found)


@settings(max_examples=200, deadline=None)
@given(group=st.one_of(groups(homogeneous=True), groups(homogeneous=False)), name=st.sampled_from(sorted(ASSIGNORS)))
def test_assigning_again_changes_nothing(group: tuple[dict[str, MemberSpec], dict[bytes, int]], name: str) -> None:
    members, counts = group
    found = ASSIGNORS[name](members, counts)
    again = {
        member_id: MemberSpec(topic_ids=member.topic_ids, assignment=found[member_id])
        for member_id, member in members.items()
    }
    assert ASSIGNORS[name](again, counts) == found


class _CountedId(bytes):
    """A topic's id that counts the comparisons with it."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        _CountedId.comparisons += 1
        return bytes.__eq__(self, other)

    def __lt__(self, other: bytes) -> bool:
        _CountedId.comparisons += 1
        return bytes.__lt__(self, other)

    __hash__ = bytes.__hash__


def test_uniform_does_not_search_all_partitions_for_each_topic() -> None:
    counts: dict[bytes, int] = {_CountedId(number.to_bytes(16, "big")): 10 for number in range(100)}
    topic_ids = list(counts)
    members = {"a": spec(*topic_ids), "b": spec(*topic_ids[:-1]), "c": spec(*topic_ids)}
    targets = assign_uniform(members, counts)
    members = {name: spec(*member.topic_ids, has=targets[name]) for name, member in members.items()}
    members["d"] = spec(*topic_ids)
    _CountedId.comparisons = 0
    found = assign_uniform(members, counts)
    comparisons, partitions = _CountedId.comparisons, sum(counts.values())
    check_complete(members, counts, found)
    assert comparisons < 100 * partitions


def heterogeneous_as_told(members: Mapping[str, MemberSpec], counts: Mapping[bytes, int]) -> dict[str, Assignment]:
    """The uniform assignor for different subscriptions, step by step as the module's text tells it."""
    held = {
        name: {(topic, n) for topic, n in pairs(member.assignment) if topic in member.topic_ids and n < counts[topic]}
        for name, member in sorted(members.items())
    }
    subscribers = {
        topic: [name for name in sorted(members) if topic in members[name].topic_ids] for topic in sorted(counts)
    }
    topics = sorted(
        counts, key=lambda topic: (-counts[topic] / len(subscribers[topic]), len(subscribers[topic]), topic)
    )
    owned = {pair for share in held.values() for pair in share}
    for topic in topics:
        for number in range(counts[topic]):
            if (topic, number) not in owned:
                held[min(subscribers[topic], key=lambda name: (len(held[name]), name))].add((topic, number))
    for _ in range(BALANCING_ROUNDS):
        if not sum(moved_as_told(topic, subscribers[topic], held) for topic in topics):
            break
    return {
        name: {topic: tuple(sorted(n for t, n in share if t == topic)) for topic in sorted({t for t, _ in share})}
        for name, share in held.items()
    }


def moved_as_told(topic: bytes, subscribers: list[str], held: dict[str, set[tuple[bytes, int]]]) -> int:
    received: set[tuple[bytes, int]] = set()
    for moved in range(1_000):
        givers = [name for name in subscribers if any(t == topic for t, n in held[name] - received)]
        giver = min(givers, key=lambda name: (-len(held[name]), name), default="")
        taker = min(subscribers, key=lambda name: (len(held[name]), name))
        if not giver or len(held[giver]) - len(held[taker]) <= 1:
            return moved
        pair = max(pair for pair in held[giver] - received if pair[0] == topic)
        held[giver].remove(pair)
        held[taker].add(pair)
        received.add(pair)
    raise AssertionError("it does not end")


@settings(max_examples=500, deadline=None)
@given(group=groups(homogeneous=False))
def test_uniform_is_as_told(group: tuple[dict[str, MemberSpec], dict[bytes, int]]) -> None:
    members, counts = group
    if any(len(set(member.topic_ids)) < len(counts) for member in members.values()):
        assert assign_uniform(members, counts) == heterogeneous_as_told(members, counts)
