"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup of dynamic members, step by step."""

from __future__ import annotations

import pytest

from kshare_core.errors import ErrorCode as E
from support.coordinator.driver import CoordinatorDriver
from support.groups.classic_driver import GROUP, RANGE, REBALANCE_MS, SESSION_MS, STICKY, ClassicGroupDriver

INITIAL_DELAY_MS = 3_000
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000


@pytest.fixture
def driver() -> ClassicGroupDriver:
    return ClassicGroupDriver()


def test_a_first_member_gets_an_id_joins_after_the_delay_and_syncs(driver: ClassicGroupDriver) -> None:
    required = driver.joined(driver.join(client_id="me"))
    assert (E(required.error_code), required.generation_id, required.leader) == (E.MEMBER_ID_REQUIRED, -1, "")
    assert required.member_id == "me-uuid1"
    assert driver.group().state == "Empty"

    call = driver.join(required.member_id)
    driver.advance(INITIAL_DELAY_MS - 1)
    assert driver.join_answer(call) is None
    assert driver.group().state == "PreparingRebalance"
    driver.advance(1)
    joined = driver.joined(call)
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, required.member_id)
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")
    assert [(member.member_id, member.metadata) for member in joined.members] == [(required.member_id, RANGE[1])]
    assert not joined.skip_assignment

    synced = driver.synced(driver.sync(required.member_id, 1, {required.member_id: b"all"}))
    assert (synced.error_code, synced.assignment, synced.protocol_name) == (0, b"all", "range")
    assert driver.group().state == "Stable"
    assert driver.heartbeat(required.member_id, 1) is E.NONE


@pytest.mark.parametrize("version", [0, 3])
def test_before_version_4_a_member_joins_at_once(driver: ClassicGroupDriver, version: int) -> None:
    call = driver.join(version=version)
    driver.advance(INITIAL_DELAY_MS)
    assert driver.joined(call).member_id == f"client-uuid{call}"


def test_members_that_join_put_the_first_rebalance_off_until_the_rebalance_timeout(driver: ClassicGroupDriver) -> None:
    calls = [driver.new_member()[1]]
    for _ in range(20):  # one every 2.9 s
        driver.advance(INITIAL_DELAY_MS - 100)
        calls.append(driver.new_member()[1])
        assert driver.join_answer(calls[0]) is None
    driver.advance(REBALANCE_MS - 20 * (INITIAL_DELAY_MS - 100))
    assert [driver.joined(call).generation_id for call in calls] == [1] * 21
    leaders = [len(driver.joined(call).members) for call in calls]
    assert leaders == [21] + [0] * 20


def test_an_id_that_was_handed_out_and_not_used_is_forgotten_after_the_session_timeout(
    driver: ClassicGroupDriver,
) -> None:
    member = driver.joined(driver.join()).member_id
    driver.advance(SESSION_MS)
    assert E(driver.joined(driver.join(member)).error_code) is E.UNKNOWN_MEMBER_ID
    assert not driver.group().pending_members


def test_a_rebalance_waits_for_an_id_that_was_handed_out(driver: ClassicGroupDriver) -> None:
    (leader,) = driver.stable(1)
    _, second = driver.new_member()
    driver.join()  # a third one that never comes back
    rejoined = driver.join(leader)
    assert driver.join_answer(second) is None
    driver.heartbeat(leader, 1)
    driver.advance(SESSION_MS)
    assert driver.joined(second).generation_id == driver.joined(rejoined).generation_id == 2


def test_a_new_member_makes_a_stable_group_rebalance(driver: ClassicGroupDriver) -> None:
    first, second = driver.stable(2)
    member, call = driver.new_member()
    assert driver.heartbeat(first, 1) is E.REBALANCE_IN_PROGRESS
    assert E(driver.synced(driver.sync(second, 1)).error_code) is E.REBALANCE_IN_PROGRESS
    again = [driver.join(first), driver.join(second)]
    answers = [driver.joined(each) for each in (*again, call)]
    assert [answer.generation_id for answer in answers] == [2, 2, 2]
    assert {answer.leader for answer in answers} == {first}
    waiting = driver.sync(member, 2)
    assert waiting not in driver.answers
    assert driver.heartbeat(member, 2) is E.NONE
    driver.sync(first, 2, {first: b"1", member: b"3"})
    assert driver.synced(waiting).assignment == b"3"
    assert driver.synced(driver.sync(second, 2)).assignment == b""  # the leader did not name it


def test_a_member_that_does_not_rejoin_within_the_rebalance_timeout_is_removed(driver: ClassicGroupDriver) -> None:
    first, second = driver.stable(2)
    _, call = driver.new_member()
    for _ in range(REBALANCE_MS // 5_000):
        assert driver.heartbeat(first, 1) is E.REBALANCE_IN_PROGRESS  # alive, but too slow
        driver.heartbeat(second, 1)
        driver.join(second)
        assert driver.join_answer(call) is None
        driver.advance(5_000)
    assert driver.joined(call).leader == second
    assert driver.heartbeat(first, 2) is E.UNKNOWN_MEMBER_ID


def test_a_join_in_place_of_one_that_waits(driver: ClassicGroupDriver) -> None:
    member, first = driver.new_member()
    second = driver.join(member)
    assert E(driver.joined(first).error_code) is E.REBALANCE_IN_PROGRESS
    driver.advance(INITIAL_DELAY_MS)
    assert driver.joined(second).generation_id == 1
    assert driver.group().waiting_joins == 0


def test_a_sync_in_place_of_one_that_waits(driver: ClassicGroupDriver) -> None:
    leader, follower = driver.stable(2)
    driver.join(leader)
    driver.join(follower)
    first, second = driver.sync(follower, 2), driver.sync(follower, 2)
    assert E(driver.synced(first).error_code) is E.REBALANCE_IN_PROGRESS
    driver.sync(leader, 2, {follower: b"f"})
    assert driver.synced(second).assignment == b"f"


def test_members_that_join_again_with_what_is_known_are_answered_at_once(driver: ClassicGroupDriver) -> None:
    leader, follower = driver.stable(2)
    answer = driver.joined(driver.join(follower))
    assert (answer.generation_id, answer.leader, len(answer.members)) == (1, leader, 0)
    assert driver.group().state == "Stable"
    waiting = driver.join(leader)  # a leader wants a new assignment
    assert driver.join_answer(waiting) is None
    driver.join(follower)
    assert driver.joined(waiting).generation_id == 2
    assert driver.group().state == "CompletingRebalance"
    assert len(driver.joined(driver.join(leader)).members) == 2
    assert len(driver.joined(driver.join(follower)).members) == 0
    assert driver.group().state == "CompletingRebalance"


@pytest.mark.parametrize("state", ["Stable", "CompletingRebalance"])
def test_a_member_with_another_subscription_makes_the_group_rebalance(driver: ClassicGroupDriver, state: str) -> None:
    leader, follower = driver.stable(2)
    if state == "CompletingRebalance":
        driver.join(leader)
        driver.join(follower)
    waiting_sync = driver.sync(leader if state == "Stable" else follower, driver.group().generation_id)
    call = driver.join(follower, protocols=[("range", b"other")])
    assert driver.join_answer(call) is None
    assert driver.group().state == "PreparingRebalance"
    expected = E.NONE if state == "Stable" else E.REBALANCE_IN_PROGRESS
    assert E(driver.synced(waiting_sync).error_code) is expected


def test_members_that_do_not_sync_in_time_are_out(driver: ClassicGroupDriver) -> None:
    first, second = driver.stable(2)
    driver.join(first)
    driver.join(second)
    waiting = driver.sync(first, 2, {first: b"1"})
    assert driver.synced(waiting).assignment == b"1"
    for _ in range(REBALANCE_MS // 5_000):
        assert driver.heartbeat(first, 2) is E.NONE
        assert driver.heartbeat(second, 2) is E.NONE
        driver.advance(5_000)
    assert driver.heartbeat(second, 2) is E.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(first, 2) is E.REBALANCE_IN_PROGRESS


def test_members_do_not_wait_longer_for_a_leader_that_does_not_sync(driver: ClassicGroupDriver) -> None:
    leader, follower = driver.stable(2)
    driver.join(leader)
    driver.join(follower)
    waiting = driver.sync(follower, 2)
    driver.advance(SESSION_MS)  # the leader is silent too
    assert E(driver.synced(waiting).error_code) is E.REBALANCE_IN_PROGRESS
    assert driver.group().leader_id == follower


def test_a_silent_member_is_out_after_its_session_timeout(driver: ClassicGroupDriver) -> None:
    first, second = driver.stable(2)
    driver.advance(SESSION_MS - 1)
    assert driver.heartbeat(first, 1) is E.NONE
    driver.advance(1)
    assert driver.heartbeat(first, 1) is E.REBALANCE_IN_PROGRESS
    assert list(driver.group().members) == [first]
    assert driver.heartbeat(second, 1) is E.UNKNOWN_MEMBER_ID


def test_a_call_that_waits_is_a_sign_of_life(driver: ClassicGroupDriver) -> None:
    first, second = driver.stable(2)
    call = driver.join(second, protocols=[STICKY, RANGE])
    for _ in range(3):
        driver.heartbeat(first, 1)
        driver.advance(SESSION_MS - 1)
    assert driver.join_answer(call) is None
    assert second in driver.group().members
    driver.join(first)
    waiting = driver.sync(second, 2)
    driver.advance(SESSION_MS - 1)
    driver.heartbeat(first, 2)
    driver.advance(SESSION_MS - 1)
    assert waiting not in driver.answers
    assert second in driver.group().members


def test_the_first_join_of_a_member_waits_for_five_minutes_at_most(driver: ClassicGroupDriver) -> None:
    leader = f"client-uuid{driver.join(version=3, rebalance_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS)}"
    driver.advance(INITIAL_DELAY_MS)
    driver.sync(leader, 1, {})
    call = driver.join(version=3)
    for _ in range(NEW_MEMBER_JOIN_TIMEOUT_MS // 5_000):
        assert driver.join_answer(call) is None
        assert driver.heartbeat(leader, 1) is E.REBALANCE_IN_PROGRESS  # and never joins
        driver.advance(5_000)
    assert E(driver.joined(call).error_code) is E.UNKNOWN_MEMBER_ID
    assert list(driver.group().members) == [leader]


def test_the_last_member_leaves_the_group_empty(driver: ClassicGroupDriver) -> None:
    (member,) = driver.stable(1)
    assert driver.leave((member, "")) == [E.NONE]
    group = driver.group()
    assert (group.state, group.generation_id, group.protocol_type, group.protocol_name) == ("Empty", 2, "consumer", "")
    assert driver.leave((member, "")) == [E.UNKNOWN_MEMBER_ID]
    assert driver.heartbeat(member, 1) is E.UNKNOWN_MEMBER_ID
    assert not driver.timers


def test_members_leave_together_and_the_group_rebalances_once(driver: ClassicGroupDriver) -> None:
    first, second, third = driver.stable(3)
    assert driver.leave((first, ""), ("nobody", ""), (third, "")) == [E.NONE, E.UNKNOWN_MEMBER_ID, E.NONE]
    assert driver.group().state == "PreparingRebalance"
    answer = driver.joined(driver.join(second))
    assert (answer.generation_id, answer.leader) == (2, second)


def test_leaving_while_a_call_waits_answers_it(driver: ClassicGroupDriver) -> None:
    first, second = driver.stable(2)
    call = driver.join(first)
    assert driver.leave((first, "")) == [E.NONE]
    assert E(driver.joined(call).error_code) is E.UNKNOWN_MEMBER_ID
    answer = driver.joined(driver.join(second))
    assert answer.leader == second


def test_an_id_that_was_only_handed_out_can_leave(driver: ClassicGroupDriver) -> None:
    member = driver.joined(driver.join()).member_id
    assert driver.leave((member, "")) == [E.NONE]
    assert E(driver.joined(driver.join(member)).error_code) is E.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, E.INVALID_GROUP_ID),
        ({"session_ms": 5_999}, E.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, E.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 6_000}, E.MEMBER_ID_REQUIRED),
        ({"session_ms": 1_800_000}, E.MEMBER_ID_REQUIRED),
        ({"member_id": "somebody"}, E.UNKNOWN_MEMBER_ID),
        ({"group_id": "share"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_id": "full", "protocol_type": ""}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_id": "full", "protocols": ()}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (STICKY,)}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (STICKY, RANGE)}, E.MEMBER_ID_REQUIRED),
    ],
)
def test_joins_that_are_refused(driver: ClassicGroupDriver, fields: dict[str, object], code: E) -> None:
    driver.coordinator.heartbeat("member", 0, ["t"], "share")
    driver.stable(1)
    answer = driver.joined(driver.join(**fields))  # type: ignore[arg-type]
    assert E(answer.error_code) is code
    assert not answer.has_protocol
    assert driver.group().state == "Stable"
    assert "full" not in driver.coordinator.state.classic_groups


def test_a_full_group_refuses_new_members() -> None:
    driver = ClassicGroupDriver({"group.max.size": "2"})
    first, second = driver.stable(2)
    assert E(driver.joined(driver.join()).error_code) is E.GROUP_MAX_SIZE_REACHED
    assert driver.join_answer(driver.join(second, protocols=[RANGE, STICKY])) is None
    late = driver.joined(driver.join())  # during a rebalance those count who have joined
    assert E(late.error_code) is E.MEMBER_ID_REQUIRED
    assert driver.join_answer(driver.join(late.member_id)) is None
    refused = driver.joined(driver.join(first))
    assert (E(refused.error_code), refused.member_id) == (E.GROUP_MAX_SIZE_REACHED, "")
    assert first not in driver.group().members


def test_ids_that_are_handed_out_are_limited() -> None:
    driver = ClassicGroupDriver({"kshare.max.classic.members": "3"})
    (member,) = driver.stable(1)
    codes = [E(driver.joined(driver.join()).error_code) for _ in range(3)]
    assert codes == [E.MEMBER_ID_REQUIRED, E.MEMBER_ID_REQUIRED, E.GROUP_MAX_SIZE_REACHED]
    driver.heartbeat(member, 1)
    driver.advance(SESSION_MS)
    assert E(driver.joined(driver.join()).error_code) is E.MEMBER_ID_REQUIRED


def test_groups_are_limited() -> None:
    driver = ClassicGroupDriver({"kshare.max.groups": "2"})
    driver.coordinator.heartbeat("member", 0, ["t"], "share")
    assert E(driver.joined(driver.join(group_id="a")).error_code) is E.MEMBER_ID_REQUIRED
    assert E(driver.joined(driver.join(group_id="b")).error_code) is E.GROUP_MAX_SIZE_REACHED
    assert E(driver.joined(driver.join(group_id="a")).error_code) is E.MEMBER_ID_REQUIRED


def test_the_protocol_that_all_support_and_most_prefer_is_chosen(driver: ClassicGroupDriver) -> None:
    one, two, three = ("one", b"1"), ("two", b"2"), ("three", b"3")
    calls = [
        driver.join(protocols=protocols, version=3)
        for protocols in ([three, one, two], [two, one, three], [three, two, one], [two, one])
    ]
    driver.advance(2 * INITIAL_DELAY_MS)
    assert {driver.joined(call).protocol_name for call in calls} == {"two"}
    by_member = {member.member_id: member.metadata for member in driver.joined(calls[0]).members}
    assert set(by_member.values()) == {b"2"}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, E.INVALID_GROUP_ID),
        ({"group_id": "nobody's"}, E.UNKNOWN_MEMBER_ID),
        ({"group_id": "share"}, E.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody"}, E.UNKNOWN_MEMBER_ID),
        ({"generation_id": 0}, E.ILLEGAL_GENERATION),
        ({"generation_id": 2}, E.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "consumer", "protocol_name": "range"}, E.NONE),
        ({"instance": "instance"}, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_syncs(driver: ClassicGroupDriver, fields: dict[str, object], code: E) -> None:
    driver.coordinator.heartbeat("member", 0, ["t"], "share")
    (member,) = driver.stable(1)
    wanted: dict[str, object] = {"member_id": member, "generation_id": 1, **fields}
    answer = driver.synced(driver.sync(**wanted))  # type: ignore[arg-type]
    assert E(answer.error_code) is code
    assert answer.assignment == (member.encode() if code is E.NONE else b"")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, E.INVALID_GROUP_ID),
        ({"group_id": "nobody's"}, E.UNKNOWN_MEMBER_ID),
        ({"group_id": "share"}, E.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody"}, E.UNKNOWN_MEMBER_ID),
        ({"generation_id": 0}, E.ILLEGAL_GENERATION),
        ({}, E.NONE),
    ],
)
def test_heartbeats(driver: ClassicGroupDriver, fields: dict[str, object], code: E) -> None:
    driver.coordinator.heartbeat("member", 0, ["t"], "share")
    (member,) = driver.stable(1)
    wanted: dict[str, object] = {"member_id": member, "generation_id": 1, **fields}
    assert driver.heartbeat(**wanted) is code  # type: ignore[arg-type]


def test_leaving_what_is_no_classic_group(driver: ClassicGroupDriver) -> None:
    driver.coordinator.heartbeat("member", 0, ["t"], "share")
    assert driver.leave(("member", ""), group_id="share") == [E.UNKNOWN_MEMBER_ID]
    assert driver.leave(("member", ""), group_id="none") == [E.UNKNOWN_MEMBER_ID]
    assert driver.leave(("member", ""), group_id="") == [E.INVALID_GROUP_ID]


def test_after_a_restart_members_carry_on_without_a_rebalance(driver: ClassicGroupDriver) -> None:
    leader, follower = driver.stable(2)
    driver.advance(SESSION_MS - 1)
    driver.restart()
    driver.advance(SESSION_MS - 1)  # nobody expires for heartbeats that nobody could hear
    for member in (leader, follower):
        assert driver.heartbeat(member, 1) is E.NONE
        assert driver.synced(driver.sync(member, 1)).assignment == member.encode()
    assert driver.joined(driver.join(follower)).generation_id == 1
    driver.restart()
    driver.advance(SESSION_MS)  # whoever is not heard of after it is out
    assert driver.group().state == "Empty"


def test_after_a_restart_a_rebalance_that_was_under_way_begins_again(driver: ClassicGroupDriver) -> None:
    leader, follower = driver.stable(2)
    driver.join(leader)
    driver.join(follower)
    driver.restart()
    assert E(driver.synced(driver.sync(leader, 2)).error_code) is E.ILLEGAL_GENERATION
    assert driver.heartbeat(follower, 1) is E.NONE
    assert driver.group().state == "Stable"
    call = driver.join(leader)
    driver.join(follower)
    assert driver.joined(call).generation_id == 2


def test_a_group_without_a_sync_is_empty_after_a_restart(driver: ClassicGroupDriver) -> None:
    member, _ = driver.new_member()
    driver.advance(INITIAL_DELAY_MS)
    assert driver.group().generation_id == 1
    driver.restart()
    assert (driver.group().state, driver.group().generation_id) == ("Empty", 0)
    assert E(driver.joined(driver.join(member)).error_code) is E.UNKNOWN_MEMBER_ID


def test_a_group_that_is_too_large_after_a_restart_rebalances(driver: ClassicGroupDriver) -> None:
    driver.stable(3)
    smaller = ClassicGroupDriver({"group.max.size": "2"})
    smaller.coordinator.rows = driver.coordinator.rows
    smaller.restart()
    assert smaller.group().state == "PreparingRebalance"
    codes = [
        E.NONE if (a := smaller.join_answer(smaller.join(name))) is None else E(a.error_code)
        for name in list(smaller.group().members)
    ]
    assert codes.count(E.GROUP_MAX_SIZE_REACHED) == 1


def test_only_what_must_survive_is_written(driver: ClassicGroupDriver) -> None:
    written = []
    coordinator: CoordinatorDriver = driver.coordinator
    member = driver.joined(driver.join()).member_id
    written.append(coordinator.record_count)  # the group exists
    driver.join(member)
    written.append(coordinator.record_count)
    driver.advance(INITIAL_DELAY_MS)
    written.append(coordinator.record_count)
    driver.sync(member, 1, {member: b"x"})
    written.append(coordinator.record_count)  # its assignment
    driver.heartbeat(member, 1)
    written.append(coordinator.record_count)
    driver.leave((member, ""))
    written.append(coordinator.record_count)  # it is empty
    assert written == [1, 0, 0, 1, 0, 1]
    assert GROUP in coordinator.load().state.classic_groups


def test_members_that_ask_for_no_time_at_all_do_not_make_the_coordinator_spin(driver: ClassicGroupDriver) -> None:
    """Static members that do not join, with a rebalance timeout of 0: the rebalance waits for them without an end."""
    calls = [driver.join(instance=name) for name in ("a", "b")]
    driver.advance(2 * INITIAL_DELAY_MS)
    for call in calls:
        driver.sync(driver.joined(call).member_id, 1, {})
    for name in ("a", "b"):
        driver.join(instance=name, rebalance_ms=0)
    guest = f"client-uuid{driver.join(version=3, rebalance_ms=0)}"
    driver.leave((guest, ""))
    before = driver.expired
    driver.advance(SESSION_MS - 1)
    assert driver.group().state == "PreparingRebalance"
    assert 9 <= driver.expired - before <= 11
