"""The SimpleShareAssignor against its rules: coverage, balance, stickiness, independence of order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kshare_coordinator.machine.groups.assignment import Assignment
from kshare_coordinator.machine.groups.share.assignor import assign

A, B = b"a" * 16, b"b" * 16


def pairs(assignment: Assignment) -> set[tuple[bytes, int]]:
    return {(topic_id, partition) for topic_id, partitions in assignment.items() for partition in partitions}


def holders(target: dict[str, Assignment]) -> dict[tuple[bytes, int], list[str]]:
    found: dict[tuple[bytes, int], list[str]] = {}
    for member, assignment in target.items():
        for pair in pairs(assignment):
            found.setdefault(pair, []).append(member)
    return found


@pytest.mark.parametrize(
    ("members", "partitions", "sizes", "holders_each"),
    [
        (1, 3, [3], 1),
        (3, 3, [1, 1, 1], 1),
        (2, 3, [1, 2], 1),
        (4, 2, [1, 1, 1, 1], 2),
        (3, 2, [1, 1, 2], 2),
        (5, 1, [1, 1, 1, 1, 1], 5),
        (7, 3, [1, 1, 1, 1, 1, 2, 2], 3),
    ],
)
def test_shapes(members: int, partitions: int, sizes: list[int], holders_each: int) -> None:
    target = assign({f"m{i}": [A] for i in range(members)}, {A: range(partitions)}, {})
    assert sorted(len(pairs(assignment)) for assignment in target.values()) == sizes
    found = holders(target)
    assert len(found) == partitions
    assert {len(names) for names in found.values()} == {holders_each}


def test_only_assignable_partitions_of_subscribed_topics() -> None:
    target = assign({"m1": [A], "m2": [A, B], "m3": [b"?" * 16]}, {A: [0, 2], B: [1]}, {})
    assert pairs(target["m3"]) == set()
    assert pairs(target["m2"]) >= {(B, 1)}
    assert pairs(target["m1"]) | pairs(target["m2"]) == {(A, 0), (A, 2), (B, 1)}
    assert B not in target["m1"]


def test_nothing_to_assign() -> None:
    assert assign({}, {A: [0]}, {}) == {}
    assert assign({"m": [A]}, {}, {"m": {A: (0,)}}) == {"m": {}}


def test_a_member_that_leaves_costs_the_others_nothing() -> None:
    before = assign({f"m{i}": [A] for i in range(4)}, {A: range(10)}, {})
    after = assign({f"m{i}": [A] for i in range(3)}, {A: range(10)}, before)
    for member in after:
        assert pairs(before[member]) <= pairs(after[member])


def test_a_member_that_joins_takes_only_its_share() -> None:
    before = assign({f"m{i}": [A] for i in range(3)}, {A: range(9)}, {})
    after = assign({"a-new-one": [A], **{f"m{i}": [A] for i in range(3)}}, {A: range(9)}, before)
    moved = sum(len(pairs(before[member]) - pairs(after[member])) for member in before)
    assert moved == len(pairs(after["a-new-one"])) == 2


member_names = st.integers(0, 30).map(lambda number: f"member-{number}")
assignments = st.dictionaries(
    st.sampled_from([A, B, b"gone" * 4]), st.sets(st.integers(0, 12), max_size=12).map(lambda s: tuple(sorted(s)))
)


@given(
    members=st.sets(member_names, min_size=1, max_size=25),
    counts=st.dictionaries(st.sampled_from([A, B]), st.integers(1, 11), min_size=1),
    previous=st.dictionaries(member_names, assignments),
)
@settings(deadline=None)
def test_equal_subscriptions(members: set[str], counts: dict[bytes, int], previous: dict[str, Assignment]) -> None:
    subscriptions = {member: [A, B] for member in sorted(members)}
    assignable = {topic_id: range(count) for topic_id, count in counts.items()}
    target = assign(subscriptions, assignable, previous)
    every = {(topic_id, partition) for topic_id, count in counts.items() for partition in range(count)}
    found = holders(target)
    assert set(found) == every
    assert {len(names) for names in found.values()} == {-(-len(members) // len(every))}
    sizes = [len(pairs(assignment)) for assignment in target.values()]
    assert max(sizes) - min(sizes) <= 1
    assert assign(subscriptions, assignable, target) == target, "nothing changed, so nothing may move"
    backwards = dict(reversed(list(subscriptions.items())))
    assert assign(backwards, assignable, dict(reversed(list(previous.items())))) == target
    if len(members) <= len(every):
        assert_least_movement(previous, target, every)


def assert_least_movement(
    previous: dict[str, Assignment], target: dict[str, Assignment], every: set[tuple[bytes, int]]
) -> None:
    """A single holder each: a partition that had exactly one claim moves only where its holder had too many."""
    claims: dict[tuple[bytes, int], int] = {}
    for member in target:
        for pair in pairs(previous.get(member, {})) & every:
            claims[pair] = claims.get(pair, 0) + 1
    if any(count > 1 for count in claims.values()):
        return
    low, odd = divmod(len(every), len(target))
    held = sorted((len(pairs(previous.get(member, {})) & every) for member in target), reverse=True)
    most_kept = sum(min(count, low + (rank < odd)) for rank, count in enumerate(held))
    kept = sum(len(pairs(previous.get(member, {})) & pairs(assignment)) for member, assignment in target.items())
    assert kept == most_kept


@given(
    subscriptions=st.dictionaries(member_names, st.sets(st.sampled_from([A, B]), max_size=2), min_size=1, max_size=20),
    counts=st.dictionaries(st.sampled_from([A, B]), st.integers(1, 9), min_size=1),
    previous=st.dictionaries(member_names, assignments),
)
@settings(deadline=None)
def test_different_subscriptions(
    subscriptions: dict[str, set[bytes]], counts: dict[bytes, int], previous: dict[str, Assignment]
) -> None:
    assignable = {topic_id: range(count) for topic_id, count in counts.items()}
    target = assign(subscriptions, assignable, previous)
    assert assign(subscriptions, assignable, target) == target
    for member, assignment in target.items():
        assert set(assignment) <= subscriptions[member]
    for topic_id, count in counts.items():
        subscribers = [member for member, topics in subscriptions.items() if topic_id in topics]
        found = {pair: names for pair, names in holders(target).items() if pair[0] == topic_id}
        if subscribers:
            assert len(found) == count
            assert max(map(len, found.values())) - min(map(len, found.values())) <= 1
