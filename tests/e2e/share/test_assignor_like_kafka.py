"""The share groups' assignor beside Kafka 4.3.1's own SimpleAssignor: equally balanced, and at least as sticky.

Which member gets which partition depends on hash tables in Kafka, so the assignments themselves differ. Compared are
how many partitions each member has, how many members each partition has, and how many pairs of member and partition
are new. Kafka's sometimes leaves a place free, because the one member that lacks a partition has all that have a place
left; kshare's then exchanges partitions. In such a case kshare's assignment must be the fuller one.

Each group goes through a history: members come and go, topics grow; both begin from the same previous assignment.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pytest

from kshare_coordinator.machine.groups.assignment import Assignment
from kshare_coordinator.machine.groups.share.assignor import assign
from support.kafka.java_programs import java_command

HISTORIES, STEPS = 150, 6

Held = dict[str, Assignment]


class Group(NamedTuple):
    """Topic ids with their numbers of partitions, and each member's subscription."""

    topics: dict[bytes, int]
    members: dict[str, list[bytes]]


class Kafkas:
    """The Java process."""

    def __init__(self) -> None:
        command = java_command("AssignShares")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def assign(self, group: Group, previous: Mapping[str, Assignment]) -> Held:
        question = {
            "topics": {_number(topic): count for topic, count in group.topics.items()},
            "members": {
                name: {
                    "topics": [_number(topic) for topic in topics],
                    "previous": {_number(topic): list(parts) for topic, parts in previous.get(name, {}).items()},
                }
                for name, topics in group.members.items()
            },
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return {
            name: {_topic(int(number)): tuple(sorted(parts)) for number, parts in topics.items()}
            for name, topics in answer.items()
        }

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def _topic(number: int) -> bytes:
    return number.to_bytes(16, "big")


def _number(topic: bytes) -> str:
    return str(int.from_bytes(topic, "big"))


@pytest.fixture(scope="module")
def kafkas() -> Iterator[Kafkas]:
    process = Kafkas()
    yield process
    process.close()


def ours(group: Group, previous: Mapping[str, Assignment]) -> Held:
    return assign(group.members, {topic: range(count) for topic, count in group.topics.items()}, previous)


def _subscribed_only(group: Group, held: Held) -> Held:
    """Kafka leaves a member topics that it does not subscribe to any more, as long as somebody else does."""
    return {
        name: {topic: parts for topic, parts in topics.items() if topic in group.members[name]}
        for name, topics in held.items()
    }


def pairs(held: Mapping[str, Assignment]) -> set[tuple[str, bytes, int]]:
    return {(name, topic, part) for name, topics in held.items() for topic, parts in topics.items() for part in parts}


def sizes(held: Mapping[str, Assignment]) -> list[int]:
    """Partitions of each member, by size."""
    return sorted(sum(map(len, topics.values())) for topics in held.values())


def holders(held: Mapping[str, Assignment], topic: bytes) -> list[int]:
    """Members of each partition of a topic that has any, by number."""
    return sorted(Counter(part for _, found, part in pairs(held) if found == topic).values())


def new_pairs(held: Mapping[str, Assignment], previous: Mapping[str, Assignment]) -> int:
    """Pairs of members that were there before."""
    return sum(name in previous for name, _, _ in pairs(held) - pairs(previous))


def changed(draw: random.Random, group: Group, *, alike: bool) -> Group:
    topics, members = dict(group.topics), dict(group.members)
    kind = draw.choice(("join", "join", "leave", "grow", "subscribe"))
    if kind == "leave" and len(members) > 1:
        del members[draw.choice(sorted(members))]
    elif kind == "grow":
        topic = draw.choice(sorted(topics))
        topics[topic] += draw.randint(1, 4)
    elif kind == "subscribe" and not alike:
        members[draw.choice(sorted(members))] = _some(draw, topics)
    else:
        members[f"member-{draw.randrange(10**6):06}"] = sorted(topics) if alike else _some(draw, topics)
    return Group(topics, members)


def _some(draw: random.Random, topics: Mapping[bytes, int]) -> list[bytes]:
    return sorted(draw.sample(sorted(topics), draw.randint(1, len(topics))))


def beginning(draw: random.Random, *, alike: bool) -> Group:
    topics = {_topic(number): draw.randint(1, 8) for number in range(1, draw.randint(1, 3) + 1)}
    names = [f"member-{draw.randrange(10**6):06}" for _ in range(draw.randint(1, 12))]
    return Group(topics, {name: sorted(topics) if alike else _some(draw, topics) for name in names})


@pytest.mark.timeout(240)
def test_equal_subscriptions(kafkas: Kafkas) -> None:
    """Also with more members than partitions, and the reverse."""
    full, moved = 0, [0, 0]
    for seed in range(HISTORIES):
        draw = random.Random(seed)
        group, previous = beginning(draw, alike=True), dict[str, Assignment]()
        for _ in range(STEPS):
            mine, theirs = ours(group, previous), kafkas.assign(group, previous)
            places = sum(group.topics.values()) * -(-len(group.members) // sum(group.topics.values()))
            assert len(pairs(mine)) == places >= len(pairs(theirs)), (seed, group)
            if len(pairs(theirs)) == places:
                full += 1
                assert sizes(mine) == sizes(theirs), (seed, group)
                every = [[count for topic in group.topics for count in holders(held, topic)] for held in (mine, theirs)]
                assert sorted(every[0]) == sorted(every[1]), (seed, group)
                moved[0] += new_pairs(mine, previous)
                moved[1] += new_pairs(theirs, previous)
            group, previous = changed(draw, group, alike=True), mine
    assert full > HISTORIES * STEPS * 0.8, "Kafka's leaves places free now and then only"
    assert moved[0] <= moved[1]


@pytest.mark.timeout(240)
def test_different_subscriptions(kafkas: Kafkas) -> None:
    """Each topic is balanced over its own members."""
    full, moved = 0, [0, 0]
    for seed in range(HISTORIES):
        draw = random.Random(seed)
        group, previous = beginning(draw, alike=False), dict[str, Assignment]()
        for _ in range(STEPS):
            if len({tuple(topics) for topics in group.members.values()}) == 1:
                break  # all alike
            mine, theirs = ours(group, previous), _subscribed_only(group, kafkas.assign(group, previous))
            assert all(set(mine[name]) <= set(topics) for name, topics in group.members.items())
            for topic, count in group.topics.items():
                subscribed = [name for name, topics in group.members.items() if topic in topics]
                places = count * -(-len(subscribed) // count)
                assert sum(holders(mine, topic)) == places >= sum(holders(theirs, topic)), (seed, group, topic)
                if sum(holders(theirs, topic)) == places:
                    full += 1
                    assert holders(mine, topic) == holders(theirs, topic), (seed, group, topic)
                    each = [sorted(len(held[name].get(topic, ())) for name in subscribed) for held in (mine, theirs)]
                    assert each[0] == each[1], (seed, group, topic)
            moved[0] += new_pairs(mine, previous)
            moved[1] += new_pairs(theirs, previous)
            group, previous = changed(draw, group, alike=False), mine
    assert full > 500, "Kafka's leaves places free now and then only"
    assert moved[0] <= moved[1]
