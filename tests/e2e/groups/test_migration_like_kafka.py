"""Groups with members of both protocols by hand, on kshare and on Apache Kafka 4.3.1: the same requests and answers."""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kshare_coordinator.machine.groups.classic.consumer_protocol import assignment_bytes, assignment_of
from kshare_core.errors import ErrorCode as E
from support.clients.delivery import Reader, System, new_topic, produce, running_system, set_group, wait_for
from support.groups.classic_driver import subscription
from support.groups.classic_wire import ClassicConnection
from support.groups.consumer_wire import GroupConnection

TIMEOUT_S = 60.0
SETTINGS = {
    "group_consumer_assignment_interval_ms": "0",
    "group_min_session_timeout_ms": "1000",
    "group_consumer_max_size": "4",
    "group_max_size": "3",
}
CLASSIC, CONSUMER = 0, 1


@pytest.fixture(scope="module", params=["kshare", "kafka"])
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with running_system(request.param, tmp_path_factory.mktemp(request.param), **SETTINGS) as running:
        yield running


class Wires:
    """Connections of both protocols, one group, and a topic of four partitions that its coordinator has heard of."""

    def __init__(self, bootstrap: str, stack: ExitStack) -> None:
        self.bootstrap = bootstrap
        self.classic = stack.enter_context(ClassicConnection(bootstrap))
        self.other = stack.enter_context(ClassicConnection(bootstrap))
        self.consumer = stack.enter_context(GroupConnection(bootstrap))
        self.group = f"group-{uuid.uuid4().hex[:8]}"
        self.topic = new_topic(bootstrap, 4)
        self.classic.find_coordinator(self.group)
        deadline = time.monotonic() + TIMEOUT_S
        while not self.consumer.join(
            f"probe-{uuid.uuid4().hex[:8]}", "probe", [self.topic]
        ).assignment.topic_partitions:
            assert time.monotonic() < deadline, f"the coordinator does not know {self.topic}"
            time.sleep(0.05)

    def stable(self, *, partitions: list[int] | None = None, **fields: Any) -> str:
        """The only member of a stable classic group in generation 1, with all partitions."""
        joined = self.join("", **fields)
        if joined.error_code == E.MEMBER_ID_REQUIRED:
            joined = self.join(joined.member_id, **fields)
        assert (joined.error_code, joined.generation_id) == (0, 1), joined
        assigned = assignment_bytes({self.topic: partitions or [0, 1, 2, 3]}, 0)
        assert self.sync(joined.member_id, 1, {joined.member_id: assigned}).error_code == 0
        return str(joined.member_id)

    def join(self, member_id: str, **fields: Any) -> Any:
        protocols = fields.pop("protocols", (("range", subscription(self.topic)),))
        return self.classic.join(self.group, member_id, protocols=protocols, **fields)

    def sync(self, member_id: str, generation_id: int, assigned: Any = None, **fields: Any) -> Any:
        return self.classic.sync(self.group, member_id, generation_id, assigned, **fields)

    def synced(self, member_id: str, generation_id: int, **fields: Any) -> list[int]:
        """The partitions that a sync gives to a member."""
        answer = self.sync(member_id, generation_id, **fields)
        assert answer.error_code == 0, answer
        found = assignment_of(answer.assignment)
        assert found is not None and not found.user_data
        return [number for name, numbers in found.partitions for number in sorted(numbers) if name == self.topic]

    def heartbeat(self, member_id: str, generation_id: int, instance: str | None = None) -> E:
        return E(self.classic.heartbeat(self.group, member_id, generation_id, instance))

    def beat(self, member_id: str, epoch: int, **fields: Any) -> tuple[E, int, list[int] | None]:
        """Code, epoch and partitions of a heartbeat of the consumer protocol; epoch 0 joins."""
        if epoch == 0:
            fields = {"owned": {}, "rebalance_timeout_ms": 60_000, "names": [self.topic], **fields}
        answer: Any = self.consumer.heartbeat(self.group, member_id, epoch, **fields)
        numbers = None
        if answer.assignment is not None:
            numbers = sorted(number for part in answer.assignment.topic_partitions for number in part.partitions)
        return E(answer.error_code), answer.member_epoch, numbers

    def leave(self, *members: tuple[str, str | None]) -> list[E]:
        return [E(each.error_code) for each in self.classic.leave(self.group, *members).members]

    def kind(self) -> tuple[str, str, str]:
        return self.classic.list_groups()[self.group]

    def described(self) -> tuple[str, int, int, dict[str, tuple[int, int, int, int]]]:
        """State, epochs, and of each member: its type, epoch, and numbers of partitions that it has and shall have."""
        answer: Any = self.consumer.describe(self.group)
        assert answer.error_code == 0, answer
        members = {
            member.member_id: (
                int(member.member_type),
                int(member.member_epoch),
                sum(len(part.partitions) for part in member.assignment.topic_partitions),
                sum(len(part.partitions) for part in member.target_assignment.topic_partitions),
            )
            for member in answer.members
        }
        return answer.group_state, answer.group_epoch, answer.assignment_epoch, members


@pytest.fixture
def wires(system: System) -> Iterator[Wires]:
    with ExitStack() as stack:
        yield Wires(system.bootstrap, stack)


def owning(topic: str, owned: list[int], version: int = 1) -> bytes:
    """The subscription of a cooperative member."""
    base = subscription(topic)
    name = struct.pack(">h", len(topic)) + topic.encode()
    return (
        struct.pack(">h", version)
        + base[2:]
        + struct.pack(">i", 1)
        + name
        + struct.pack(f">{len(owned) + 1}i", len(owned), *owned)
        + (struct.pack(">i", 5) if version >= 2 else b"")
        + (struct.pack(">h", 4) + b"rack" if version >= 3 else b"")
    )


def test_there_and_back_step_by_step(wires: Wires) -> None:
    """A classic member, one of the consumer protocol joins and leaves; the classic one gives everything up at once."""
    member = wires.stable()
    assert wires.kind() == ("consumer", "Stable", "classic")
    assert wires.beat("c", 0) == (E.NONE, 2, [])
    assert wires.kind() == ("consumer", "Reconciling", "consumer")
    assert wires.described() == ("Reconciling", 2, 2, {member: (CLASSIC, 1, 4, 2), "c": (CONSUMER, 2, 0, 2)})
    assert wires.heartbeat(member, 1) is E.REBALANCE_IN_PROGRESS
    assert E(wires.sync(member, 1).error_code) is E.REBALANCE_IN_PROGRESS
    joined = wires.join(member)
    assert (joined.error_code, joined.generation_id, joined.member_id) == (0, 2, member)
    assert (joined.protocol_type, joined.protocol_name, joined.leader, joined.members) == ("consumer", "range", "", ())
    kept = wires.synced(member, 2)
    assert len(kept) == 2
    assert wires.heartbeat(member, 2) is E.NONE
    code, epoch, given = wires.beat("c", 2)
    assert (code, epoch, sorted([*kept, *(given or [])])) == (E.NONE, 2, [0, 1, 2, 3])
    assert wires.described() == ("Stable", 2, 2, {member: (CLASSIC, 2, 2, 2), "c": (CONSUMER, 2, 2, 2)})
    assert wires.classic.describe(wires.group).error_code == E.GROUP_ID_NOT_FOUND

    assert wires.beat("c", -1)[0] is E.NONE
    assert wires.kind() == ("consumer", "PreparingRebalance", "classic")
    assert wires.consumer.describe(wires.group).error_code == E.GROUP_ID_NOT_FOUND  # type: ignore[comparison-overlap]
    assert wires.beat("c", 2)[0] is E.GROUP_ID_NOT_FOUND
    assert wires.heartbeat(member, 2) is E.REBALANCE_IN_PROGRESS
    joined = wires.join(member)
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 3, member)
    assert [each.member_id for each in joined.members] == [member]
    assert wires.synced(member, 3, assigned={member: assignment_bytes({wires.topic: [0, 1, 2, 3]}, 0)}) == [0, 1, 2, 3]
    assert wires.kind() == ("consumer", "Stable", "classic")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_cooperative_member_gives_back_what_it_is_asked_for(wires: Wires, version: int) -> None:
    def protocols(owned: list[int]) -> Any:
        return (("cooperative-sticky", owning(wires.topic, owned, version)),)

    name = {"protocol_name": "cooperative-sticky"}
    joined = wires.join("", protocols=protocols([]))
    member = joined.member_id
    assert wires.join(member, protocols=protocols([])).generation_id == 1
    assert wires.synced(member, 1, assigned={member: assignment_bytes({wires.topic: [0, 1, 2, 3]}, 0)}, **name)
    assert wires.beat("c", 0) == (E.NONE, 2, [])
    assert wires.heartbeat(member, 1) is E.REBALANCE_IN_PROGRESS
    assert wires.join(member, protocols=protocols([0, 1, 2, 3])).generation_id == 1
    kept = wires.synced(member, 1, **name)
    assert len(kept) == 2
    assert wires.beat("c", 2) == (E.NONE, 2, None)
    assert wires.described()[3] == {member: (CLASSIC, 1, 4, 2), "c": (CONSUMER, 2, 0, 2)}
    assert wires.heartbeat(member, 1) is E.REBALANCE_IN_PROGRESS
    assert wires.join(member, protocols=protocols(kept)).generation_id == 2
    assert wires.synced(member, 2, **name) == kept
    code, epoch, given = wires.beat("c", 2)
    assert (code, epoch, sorted([*kept, *(given or [])])) == (E.NONE, 2, [0, 1, 2, 3])
    assert wires.heartbeat(member, 2) is E.NONE


def test_a_member_that_waits_for_what_others_have(wires: Wires) -> None:
    """A classic member joins a group of the consumer protocol."""
    assert wires.beat("c", 0) == (E.NONE, 2, [0, 1, 2, 3])
    first = wires.join("")
    assert E(first.error_code) is E.MEMBER_ID_REQUIRED and first.member_id
    member = first.member_id
    joined = wires.join(member)
    assert (joined.error_code, joined.generation_id) == (0, 3)
    assert wires.synced(member, 3) == []
    assert wires.heartbeat(member, 3) is E.NONE
    code, epoch, kept = wires.beat("c", 2)
    assert (code, epoch, len(kept or [])) == (E.NONE, 2, 2)
    topic_id = next(iter(part.topic_id for part in _target(wires, "c")))
    assert wires.beat("c", 2, owned={topic_id: kept}) == (E.NONE, 3, None)
    assert wires.heartbeat(member, 3) is E.REBALANCE_IN_PROGRESS
    assert wires.join(member).generation_id == 3
    assert sorted([*wires.synced(member, 3), *(kept or [])]) == [0, 1, 2, 3]


def _target(wires: Wires, member_id: str) -> Any:
    members: Any = wires.consumer.describe(wires.group).members
    return next(member.target_assignment.topic_partitions for member in members if member.member_id == member_id)


def test_requests_that_are_refused(wires: Wires) -> None:
    member = wires.stable()
    assert wires.beat("c", 0)[:2] == (E.NONE, 2)
    assert wires.join(member).generation_id == 2
    static = wires.join("", instance="i")
    assert (static.error_code, static.generation_id) == (0, 3)
    for fields, code in (
        ({"session_ms": 999}, E.INVALID_SESSION_TIMEOUT),
        ({"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("sticky", subscription(wires.topic)),)}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "x", "instance": "i"}, E.FENCED_INSTANCE_ID),
        ({"member_id": "x", "instance": "none"}, E.UNKNOWN_MEMBER_ID),
        ({"protocols": (("range", b"\0"),), "version": 3}, E.UNKNOWN_SERVER_ERROR),
    ):
        wanted: dict[str, Any] = {"member_id": member, **fields}
        answer = wires.join(**wanted)
        assert (E(answer.error_code), answer.generation_id) == (code, -1), fields
        assert answer.member_id == (member if code is E.INVALID_SESSION_TIMEOUT else "")
    for fields, code in (
        ({"generation_id": 1}, E.ILLEGAL_GENERATION),
        ({"generation_id": 3}, E.ILLEGAL_GENERATION),
        ({"member_id": "x"}, E.UNKNOWN_MEMBER_ID),
        ({"member_id": "c"}, E.UNKNOWN_MEMBER_ID),
        ({"member_id": "x", "instance": "i"}, E.FENCED_INSTANCE_ID),
        ({"instance": "none"}, E.UNKNOWN_MEMBER_ID),
        ({"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({}, E.REBALANCE_IN_PROGRESS),
    ):
        wanted = {"member_id": member, "generation_id": 2, **fields}
        answer = wires.sync(**wanted)
        assert (E(answer.error_code), answer.assignment) == (code, b""), fields
    assert wires.heartbeat(member, 1) is E.ILLEGAL_GENERATION
    assert wires.heartbeat("x", 2) is E.UNKNOWN_MEMBER_ID
    assert wires.heartbeat("c", 2) is E.UNKNOWN_MEMBER_ID
    assert wires.heartbeat("x", 3, "i") is E.FENCED_INSTANCE_ID
    assert wires.heartbeat(member, 2, "none") is E.UNKNOWN_MEMBER_ID
    assert wires.heartbeat(member, 2) is E.REBALANCE_IN_PROGRESS
    assert wires.leave(("x", None), ("x", "i"), ("", "none")) == [
        E.UNKNOWN_MEMBER_ID,
        E.FENCED_INSTANCE_ID,
        E.UNKNOWN_MEMBER_ID,
    ]
    full = wires.join("unknown", version=3)
    assert (E(full.error_code), wires.described()[1]) == (E.NONE, 4)
    assert E(wires.join("", version=3).error_code) is E.GROUP_MAX_SIZE_REACHED


def test_which_members_may_commit(wires: Wires) -> None:
    member = wires.stable()
    assert wires.beat("c", 0)[:2] == (E.NONE, 2)
    commit = wires.classic.commit
    assert commit(wires.group, wires.topic, member, 1) == E.NONE
    assert commit(wires.group, wires.topic, member, 2) == E.ILLEGAL_GENERATION
    assert commit(wires.group, wires.topic, "c", 3) == E.STALE_MEMBER_EPOCH
    assert commit(wires.group, wires.topic, "x", 1) == E.UNKNOWN_MEMBER_ID
    assert wires.join(member).generation_id == 2
    kept = wires.synced(member, 2)
    assert commit(wires.group, wires.topic, member, 1) == (E.NONE if 0 in kept else E.ILLEGAL_GENERATION)


def test_static_members_change_their_protocol(wires: Wires) -> None:
    """Nobody leaves; the instance id goes from one member id to the next, and the last one makes a classic group."""
    member = wires.stable(instance="i")
    assert wires.beat("c", 0, instance_id="i") == (E.NONE, 1, [0, 1, 2, 3])
    assert wires.described() == ("Stable", 1, 1, {"c": (CONSUMER, 1, 4, 4)})
    assert wires.heartbeat(member, 1, "i") is E.FENCED_INSTANCE_ID
    back = wires.join("", instance="i")
    assert (back.error_code, back.generation_id, back.leader) == (0, 1, "")
    assert wires.kind() == ("consumer", "Stable", "classic")
    assert wires.synced(back.member_id, 1, instance="i") == [0, 1, 2, 3]
    assert wires.heartbeat(back.member_id, 1, "i") is E.NONE
    assert wires.beat("c", 1, instance_id="i")[0] is E.GROUP_ID_NOT_FOUND


def test_calls_that_wait_are_sent_back_at_an_upgrade(wires: Wires) -> None:
    member = wires.stable()
    wires.other.send_join(wires.group, protocols=(("range", subscription(wires.topic)),), version=3)
    wait_for(lambda: wires.heartbeat(member, 1) is E.REBALANCE_IN_PROGRESS, "the join has come", TIMEOUT_S)
    assert wires.beat("c", 0)[:2] == (E.NONE, 2)
    waited = wires.other.receive()
    assert E(waited.error_code) is E.REBALANCE_IN_PROGRESS and waited.member_id
    assert {each[:3] for each in wires.described()[3].values()} == {(CLASSIC, 1, 4), (CLASSIC, 1, 0), (CONSUMER, 2, 0)}


def test_leaving_members_make_a_classic_group(wires: Wires) -> None:
    """LeaveGroup takes out members of either protocol."""
    member = wires.stable()
    assert wires.beat("c", 0)[:2] == (E.NONE, 2)
    second = wires.join("", version=3).member_id
    assert wires.described()[1] == 3
    assert wires.leave((second, None)) == [E.NONE]
    assert wires.kind()[2] == "consumer"
    assert wires.leave(("c", None), ("c", None)) == [E.NONE, E.NONE]
    assert wires.kind() == ("consumer", "PreparingRebalance", "classic")
    assert wires.join(member).leader == member


def test_groups_that_cannot_be_upgraded(wires: Wires) -> None:
    """One of another protocol type, one whose assignor has something of its own to say, one with malformed metadata."""
    joined = wires.join("", protocol_type="connect", version=3)
    assert joined.error_code == 0
    assert wires.beat("c", 0)[0] is E.GROUP_ID_NOT_FOUND
    wires.group = f"{wires.group}-2"
    joined = wires.join("", version=3)
    with_user_data = assignment_bytes({wires.topic: [0]}, 0)[:-4] + struct.pack(">i", 3) + b"abc"
    assert wires.sync(joined.member_id, 1, {joined.member_id: with_user_data}).error_code == 0
    assert wires.beat("c", 0)[0] is E.GROUP_ID_NOT_FOUND
    wires.group = f"{wires.group}-3"
    joined = wires.join("", version=3)
    assert wires.sync(joined.member_id, 1, {joined.member_id: b"\0"}).error_code == 0
    assert wires.beat("c", 0)[0] is E.GROUP_ID_NOT_FOUND
    assert wires.kind()[2] == "classic"
    assert wires.beat("c", 1)[0] is E.GROUP_ID_NOT_FOUND


def test_a_group_that_is_too_large_for_the_classic_protocol_stays(wires: Wires) -> None:
    """group.max.size is 3, group.consumer.max.size 4."""
    assert wires.beat("c", 0)[0] is E.NONE
    for _ in range(3):
        assert wires.join("", version=3).error_code == 0
    assert wires.beat("d", 0)[0] is E.GROUP_MAX_SIZE_REACHED
    static = wires.beat("c", -1)
    assert static[0] is E.NONE and wires.kind()[2] == "classic"


def test_a_share_group_stays_one(wires: Wires) -> None:
    set_group(wires.bootstrap, wires.group, auto_offset_reset="earliest")
    produce(wires.bootstrap, wires.topic, ["one"])
    with Reader(wires.bootstrap, wires.group, wires.topic) as reader:
        assert len(reader.accept(1)) == 1
        assert E(wires.join("").error_code) is E.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["kshare", "kafka"])
@pytest.mark.parametrize("policy", ["upgrade", "downgrade", "disabled"])
def test_the_policy(kind: str, policy: str, tmp_path: Path) -> None:
    settings = {**SETTINGS, "group_consumer_migration_policy": policy}
    with running_system(kind, tmp_path, **settings) as running, ExitStack() as stack:
        wires = Wires(running.bootstrap, stack)
        member = wires.stable()
        assert wires.beat("c", 0)[0] is (E.NONE if policy == "upgrade" else E.GROUP_ID_NOT_FOUND)
        assert wires.kind()[2] == ("consumer" if policy == "upgrade" else "classic")
        assert wires.leave((member, None)) == [E.NONE]
        assert wires.beat("d", 0)[0] is E.NONE
        joined = wires.join("", version=3)
        refused = policy == "disabled"
        assert E(joined.error_code) is (E.INCONSISTENT_GROUP_PROTOCOL if refused else E.NONE)
        wires.leave(("c", None), ("d", None))
        assert wires.kind()[2] == ("classic" if policy == "downgrade" else "consumer")
