"""The classic group protocol by hand, on kshare and on Apache Kafka 4.3.1: the same requests, the same answers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kshare_core.errors import ErrorCode as E
from support.clients.delivery import Reader, System, new_topic, produce, running_system, set_group
from support.groups.classic_driver import RANGE, subscription
from support.groups.classic_wire import ClassicConnection

SETTINGS = {"group_initial_rebalance_delay_ms": "300", "group_max_size": "3", "group_min_session_timeout_ms": "1000"}


@pytest.fixture(scope="module", params=["kshare", "kafka"])
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with running_system(request.param, tmp_path_factory.mktemp(request.param), **SETTINGS) as running:
        with ClassicConnection(running.bootstrap) as wire:
            wire.find_coordinator("any")
            # Kafka names a coordinator before it has made the logs of all group partitions and loaded them.
            wire.heartbeat("any", "nobody", 1)
            wire.list_groups()
        yield running


@pytest.fixture
def wire(system: System) -> Iterator[ClassicConnection]:
    with ClassicConnection(system.bootstrap) as made:
        yield made


@pytest.fixture
def other(system: System) -> Iterator[ClassicConnection]:
    """A second connection, for calls while one waits on the first."""
    with ClassicConnection(system.bootstrap) as made:
        yield made


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


def stable(wire: ClassicConnection, group: str, **fields: Any) -> str:
    """The member of a stable group in generation 1."""
    joined = wire.new_member(group, **fields)
    assert (joined.error_code, joined.generation_id) == (0, 1)
    assert wire.sync(group, joined.member_id, 1, {joined.member_id: b"mine"}).error_code == 0
    return str(joined.member_id)


def said(answer: Any) -> tuple[E, int, str | None, str]:
    """Code, generation, protocol name and leader of a JoinGroup."""
    return E(answer.error_code), answer.generation_id, answer.protocol_name, answer.leader


@pytest.mark.parametrize("version", range(10))
def test_a_member_alone_in_every_version(wire: ClassicConnection, group: str, version: int) -> None:
    first = wire.join(group, version=version)
    if version >= 4:
        assert said(first) == (E.MEMBER_ID_REQUIRED, -1, None if version >= 7 else "", "")
        assert first.members == ()
        first = wire.join(group, first.member_id, version=version)
    member = first.member_id
    assert member.startswith("t-")
    assert said(first) == (E.NONE, 1, "range", member)
    assert [(each.member_id, each.metadata) for each in first.members] == [(member, RANGE[1])]
    if version >= 7:
        assert first.protocol_type == "consumer"
    sync_version = min(version, 5)
    synced = wire.sync(group, member, 1, {member: b"mine"}, version=sync_version)
    assert (synced.error_code, synced.assignment) == (0, b"mine")
    left = wire.leave(group, (member, None), version=min(version, 5))
    assert left.error_code == 0
    if version >= 3:
        assert [(each.member_id, each.group_instance_id, each.error_code) for each in left.members] == [
            (member, None, 0)
        ]


@pytest.mark.parametrize(
    ("fields", "code", "named"),
    [
        ({"group": ""}, E.INVALID_GROUP_ID, True),
        ({"session_ms": 999}, E.INVALID_SESSION_TIMEOUT, True),
        ({"session_ms": 1_800_001}, E.INVALID_SESSION_TIMEOUT, True),
        ({"member_id": "nobody"}, E.UNKNOWN_MEMBER_ID, True),
        ({"group": "not there", "member_id": "nobody"}, E.UNKNOWN_MEMBER_ID, True),
        ({"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL, False),
        ({"protocols": (("sticky", b""),)}, E.INCONSISTENT_GROUP_PROTOCOL, False),
        ({"protocols": ()}, E.INCONSISTENT_GROUP_PROTOCOL, False),
        ({"protocol_type": ""}, E.INCONSISTENT_GROUP_PROTOCOL, False),
        ({"member_id": "nobody", "protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL, True),
        ({"member_id": "nobody", "instance": "i"}, E.UNKNOWN_MEMBER_ID, True),
    ],
)
def test_joins_that_are_refused(
    wire: ClassicConnection, group: str, fields: dict[str, Any], code: E, named: bool
) -> None:
    stable(wire, group)
    wanted = {"group": group, **fields}
    answer = wire.join(wanted.pop("group"), **wanted)
    assert said(answer) == (code, -1, None, "")
    assert answer.member_id == (fields.get("member_id", "") if named else "")


def test_heartbeats_syncs_and_leaves_that_are_refused(wire: ClassicConnection, group: str) -> None:
    member = stable(wire, group)
    assert E(wire.heartbeat(group, member, 1)) is E.NONE
    assert E(wire.heartbeat(group, member, 0)) is E.ILLEGAL_GENERATION
    assert E(wire.heartbeat(group, "nobody", 1)) is E.UNKNOWN_MEMBER_ID
    assert E(wire.heartbeat(group, member, 1, "nobody")) is E.UNKNOWN_MEMBER_ID
    assert E(wire.heartbeat("not there", member, 1)) is E.UNKNOWN_MEMBER_ID
    assert E(wire.heartbeat("", member, 1)) is E.INVALID_GROUP_ID

    again = wire.sync(group, member, 1)
    assert (again.error_code, again.assignment, again.protocol_type, again.protocol_name) == (
        0,
        b"mine",
        "consumer",
        "range",
    )
    for fields, code in (
        ({"generation_id": 2}, E.ILLEGAL_GENERATION),
        ({"member_id": "nobody"}, E.UNKNOWN_MEMBER_ID),
        ({"group": "not there"}, E.UNKNOWN_MEMBER_ID),
        ({"group": ""}, E.INVALID_GROUP_ID),
        ({"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": None}, E.INCONSISTENT_GROUP_PROTOCOL),
    ):
        wanted: dict[str, Any] = {"group": group, "member_id": member, "generation_id": 1, **fields}
        answer = wire.sync(**wanted)
        assert E(answer.error_code) is code, fields
        assert (answer.assignment, answer.protocol_type, answer.protocol_name) == (b"", None, None)

    left = wire.leave(group, ("nobody", None), ("", "nobody"), (member, None), (member, None))
    assert left.error_code == 0
    assert [E(each.error_code) for each in left.members] == [
        E.UNKNOWN_MEMBER_ID,
        E.UNKNOWN_MEMBER_ID,
        E.NONE,
        E.UNKNOWN_MEMBER_ID,
    ]
    assert E(wire.leave("not there", (member, None)).members[0].error_code) is E.UNKNOWN_MEMBER_ID
    assert E(wire.leave("not there", (member, None), version=2).error_code) is E.UNKNOWN_MEMBER_ID
    assert E(wire.leave("", (member, None)).error_code) is E.INVALID_GROUP_ID


def test_a_rebalance(wire: ClassicConnection, other: ClassicConnection, group: str) -> None:
    leader = stable(wire, group)
    follower = other.join(group).member_id
    other.send_join(group, follower)
    while E(wire.heartbeat(group, leader, 1)) is E.NONE:
        pass
    assert E(wire.heartbeat(group, leader, 1)) is E.REBALANCE_IN_PROGRESS
    assert E(wire.sync(group, leader, 1).error_code) is E.REBALANCE_IN_PROGRESS
    assert wire.describe(group).group_state == "PreparingRebalance"
    assert wire.delete_groups(group) == {group: E.NON_EMPTY_GROUP}
    joined = wire.join(group, leader)
    assert said(joined) == (E.NONE, 2, "range", leader)
    assert sorted(each.member_id for each in joined.members) == sorted([leader, follower])
    waited = other.receive()
    assert (said(waited), waited.members) == ((E.NONE, 2, "range", leader), ())
    described = wire.describe(group)
    assert (described.group_state, described.protocol_data) == ("CompletingRebalance", "")
    assert E(wire.heartbeat(group, leader, 2)) is E.NONE
    other.send(14, 5, **_sync(group, follower, 2))
    assert wire.sync(group, leader, 2, {follower: b"all"}).assignment == b""
    assert other.receive().assignment == b"all"
    assert said(other.join(group, follower)) == (E.NONE, 2, "range", leader)


def _sync(group: str, member_id: str, generation_id: int) -> dict[str, Any]:
    return {
        "group_id": group,
        "generation_id": generation_id,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": (),
    }


@pytest.mark.parametrize(("version", "members"), [(9, 1), (8, 0)])
def test_static_members(wire: ClassicConnection, group: str, version: int, members: int) -> None:
    old = wire.join(group, instance="i").member_id
    assert old.startswith("i-")
    wire.sync(group, old, 1, {old: b"mine"}, instance="i")
    joined = wire.join(group, instance="i", version=version)
    new = joined.member_id
    assert said(joined) == (E.NONE, 1, "range", new if version >= 9 else old)
    assert len(joined.members) == members
    if version >= 9:
        assert joined.skip_assignment
    assert wire.sync(group, new, 1, instance="i").assignment == b"mine"
    assert E(wire.heartbeat(group, old, 1, "i")) is E.FENCED_INSTANCE_ID
    assert E(wire.sync(group, old, 1, instance="i").error_code) is E.FENCED_INSTANCE_ID
    assert E(wire.join(group, old, instance="i").error_code) is E.FENCED_INSTANCE_ID
    assert E(wire.leave(group, (old, "i")).members[0].error_code) is E.FENCED_INSTANCE_ID
    assert E(wire.leave(group, ("", "i")).members[0].error_code) is E.NONE
    assert wire.describe(group).group_state == "Empty"


def test_a_full_group(wire: ClassicConnection, system: System, group: str) -> None:
    """group.max.size is 3; nobody else has joined the rebalance that the fourth one finds."""
    connections = [ClassicConnection(system.bootstrap) for _ in range(3)]
    for index, connection in enumerate(connections):
        connection.send_join(group, instance=f"i{index}")
    ids = [connection.receive().member_id for connection in connections]
    assert wire.describe(group).group_state == "CompletingRebalance"
    answer = wire.join(group)
    assert (said(answer)[0], answer.member_id) == (E.GROUP_MAX_SIZE_REACHED, "")
    assert len(set(ids)) == 3
    for connection in connections:
        with connection:
            pass


def test_offsets_of_members(wire: ClassicConnection, system: System, group: str) -> None:
    topic, unread = new_topic(system.bootstrap), new_topic(system.bootstrap)
    protocols = (("range", subscription(topic)),)
    member = stable(wire, group, protocols=protocols)
    assert E(wire.commit(group, topic, member, 1)) is E.NONE
    assert E(wire.commit(group, unread, member, 1)) is E.NONE
    assert E(wire.commit(group, topic, member, 0)) is E.ILLEGAL_GENERATION
    assert E(wire.commit(group, topic, "nobody", 1)) is E.UNKNOWN_MEMBER_ID
    assert E(wire.commit(group, topic, member, 1, "nobody")) is E.UNKNOWN_MEMBER_ID
    assert E(wire.commit(group, topic)) is E.UNKNOWN_MEMBER_ID
    assert E(wire.commit("not there", topic, member, 1)) is E.GROUP_ID_NOT_FOUND
    assert wire.delete_offsets(group, (topic, [0, 7]), (unread, [0]), ("none", [0])) == sorted(
        [
            (topic, 0, E.GROUP_SUBSCRIBED_TO_TOPIC),
            (topic, 7, E.UNKNOWN_TOPIC_OR_PARTITION),
            (unread, 0, E.NONE),
            ("none", 0, E.UNKNOWN_TOPIC_OR_PARTITION),
        ]
    )
    assert wire.delete_offsets("not there", (topic, [0])) == E.GROUP_ID_NOT_FOUND
    assert wire.delete_offsets("", (topic, [0])) == E.INVALID_GROUP_ID
    wire.send_join(group, member, protocols=protocols)
    wire.receive()
    assert E(wire.commit(group, topic, member, 2)) is E.REBALANCE_IN_PROGRESS
    wire.leave(group, (member, None))
    assert E(wire.commit(group, topic)) is E.NONE
    assert wire.delete_offsets(group, (topic, [0])) == [(topic, 0, E.NONE)]


def test_offsets_of_what_is_no_consumer_group(wire: ClassicConnection, system: System, group: str) -> None:
    topic = new_topic(system.bootstrap)
    wire.new_member(group, protocol_type="connect")
    assert wire.delete_offsets(group, (topic, [0])) == E.NON_EMPTY_GROUP


def test_groups_are_described_listed_and_deleted(wire: ClassicConnection, system: System, group: str) -> None:
    topic, simple = new_topic(system.bootstrap), f"{group}-simple"
    assert E(wire.commit(simple, topic)) is E.NONE
    member = stable(wire, group)
    described = wire.describe(group)
    assert (described.error_code, described.group_state) == (0, "Stable")
    assert (described.protocol_type, described.protocol_data) == ("consumer", "range")
    (only,) = described.members
    assert (only.member_id, only.client_id, only.client_host) == (member, "t", "/127.0.0.1")
    assert (only.member_metadata, only.member_assignment, only.group_instance_id) == (RANGE[1], b"mine", None)
    missing = wire.describe("not there")
    assert (E(missing.error_code), missing.group_state, missing.members) == (E.GROUP_ID_NOT_FOUND, "Dead", ())
    missing = wire.describe("not there", version=5)
    assert (E(missing.error_code), missing.group_state) == (E.NONE, "Dead")
    empty = wire.describe(simple)
    assert (empty.error_code, empty.group_state, empty.protocol_type) == (0, "Empty", "")

    def ours(**filters: Any) -> dict[str, tuple[str, str, str]]:
        return {name: what for name, what in wire.list_groups(**filters).items() if name.startswith(group)}

    both = {group: ("consumer", "Stable", "classic"), simple: ("", "Empty", "classic")}
    assert ours() == ours(types=["CLASSIC"]) == both
    assert list(ours(states=["stable"])) == [group]
    assert list(ours(states=["Empty"], types=["classic", "share"])) == [simple]
    assert ours(types=["unheard of"]) == ours(states=["unheard of"]) == ours(types=["consumer"]) == {}

    assert wire.delete_groups(group, simple, "not there") == {
        group: E.NON_EMPTY_GROUP,
        simple: E.NONE,
        "not there": E.GROUP_ID_NOT_FOUND,
    }
    wire.leave(group, (member, None))
    assert wire.delete_groups(group) == {group: E.NONE}
    assert wire.delete_groups(group) == {group: E.GROUP_ID_NOT_FOUND}


def test_the_id_of_a_share_group(wire: ClassicConnection, system: System, group: str) -> None:
    topic = new_topic(system.bootstrap)
    set_group(system.bootstrap, group, auto_offset_reset="earliest")
    with Reader(system.bootstrap, group, topic) as reader:
        produce(system.bootstrap, topic, ["a"])
        reader.accept(1)  # see Reader.close
        assert group in wire.list_groups(types=["share"])
        answer = wire.join(group)
        assert (said(answer)[0], answer.member_id) == (E.INCONSISTENT_GROUP_PROTOCOL, "")
        assert E(wire.join(group, "nobody").error_code) is E.INCONSISTENT_GROUP_PROTOCOL
        assert E(wire.heartbeat(group, "nobody", 1)) is E.UNKNOWN_MEMBER_ID
        assert E(wire.sync(group, "nobody", 1).error_code) is E.UNKNOWN_MEMBER_ID
        assert E(wire.leave(group, ("nobody", None)).members[0].error_code) is E.UNKNOWN_MEMBER_ID
        assert E(wire.describe(group).error_code) is E.GROUP_ID_NOT_FOUND
        assert E(wire.commit(group, topic)) is E.GROUP_ID_NOT_FOUND
        assert wire.delete_offsets(group, (topic, [0])) == E.GROUP_ID_NOT_FOUND
        assert wire.delete_groups(group) == {group: E.NON_EMPTY_GROUP}
