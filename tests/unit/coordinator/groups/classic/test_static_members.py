"""Static members (KIP-345): they return under another member id, and the holder of the old one is fenced."""

from __future__ import annotations

import pytest

from kshare_core.errors import ErrorCode as E
from support.groups.classic_driver import RANGE, SESSION_MS, STICKY, ClassicGroupDriver


@pytest.fixture
def driver() -> ClassicGroupDriver:
    return ClassicGroupDriver()


def static_group(driver: ClassicGroupDriver, *instances: str) -> list[str]:
    """A stable group of these static members, each with its own id as assignment; the first one leads."""
    calls = [driver.join(instance=instance) for instance in instances]
    driver.advance(6_000)
    names = [driver.joined(call).member_id for call in calls]
    for member_id in names:
        driver.sync(member_id, 1, {name: name.encode() for name in names})
    assert driver.group().state == "Stable"
    return names


def test_a_static_member_joins_at_once_under_an_id_with_its_name(driver: ClassicGroupDriver) -> None:
    (member,) = static_group(driver, "i")
    assert member.startswith("i-")
    assert driver.heartbeat(member, 1, instance="i") is E.NONE


@pytest.mark.parametrize(("version", "leader_is_new", "member_count"), [(9, True, 2), (8, False, 0)])
def test_a_leader_that_comes_back_goes_on_without_a_rebalance(
    driver: ClassicGroupDriver, version: int, leader_is_new: bool, member_count: int
) -> None:
    leader, _ = static_group(driver, "a", "b")
    answer = driver.joined(driver.join(instance="a", version=version))
    assert (answer.error_code, answer.generation_id) == (0, 1)
    assert answer.member_id != leader
    assert answer.leader == (answer.member_id if leader_is_new else leader)
    assert (len(answer.members), answer.skip_assignment) == (member_count, leader_is_new)
    assert driver.group().state == "Stable"
    assert driver.group().leader_id == answer.member_id
    synced = driver.synced(driver.sync(answer.member_id, 1, instance="a"))
    assert synced.assignment == leader.encode()


def test_a_follower_that_comes_back_survives_a_restart(driver: ClassicGroupDriver) -> None:
    leader, follower = static_group(driver, "a", "b")
    answer = driver.joined(driver.join(instance="b"))
    assert (answer.leader, answer.skip_assignment, len(answer.members)) == (leader, False, 0)
    driver.restart()
    assert driver.heartbeat(answer.member_id, 1, instance="b") is E.NONE
    assert driver.heartbeat(follower, 1, instance="b") is E.FENCED_INSTANCE_ID


def test_the_former_member_is_fenced_wherever_it_asks(driver: ClassicGroupDriver) -> None:
    _, old = static_group(driver, "a", "b")
    new = driver.joined(driver.join(instance="b")).member_id
    assert driver.heartbeat(old, 1, instance="b") is E.FENCED_INSTANCE_ID
    assert E(driver.synced(driver.sync(old, 1, instance="b")).error_code) is E.FENCED_INSTANCE_ID
    assert E(driver.joined(driver.join(old, instance="b")).error_code) is E.FENCED_INSTANCE_ID
    assert driver.leave((old, "b")) == [E.FENCED_INSTANCE_ID]
    assert driver.heartbeat(old, 1) is E.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(new, 1, instance="other") is E.UNKNOWN_MEMBER_ID


def test_a_join_that_waits_under_the_old_id_is_fenced(driver: ClassicGroupDriver) -> None:
    first, second = static_group(driver, "a", "b")
    waiting = driver.join(first, instance="a")
    again = driver.join(instance="a")
    assert E(driver.joined(waiting).error_code) is E.FENCED_INSTANCE_ID
    assert driver.join_answer(again) is None
    driver.join(second, instance="b")
    assert driver.joined(again).generation_id == 2


def test_a_sync_that_waits_under_the_old_id_is_fenced_and_a_rebalance_begins(driver: ClassicGroupDriver) -> None:
    first, second = static_group(driver, "a", "b")
    driver.join(first, instance="a")
    driver.join(second, instance="b")
    waiting = driver.sync(second, 2, instance="b")
    again = driver.join(instance="b")
    assert E(driver.synced(waiting).error_code) is E.FENCED_INSTANCE_ID
    assert driver.join_answer(again) is None
    assert driver.group().state == "PreparingRebalance"


def test_another_protocol_of_a_member_that_comes_back_makes_the_group_rebalance(driver: ClassicGroupDriver) -> None:
    calls = [driver.join(instance=name, protocols=[RANGE, STICKY]) for name in ("a", "b")]
    driver.advance(6_000)
    names = [driver.joined(call).member_id for call in calls]
    driver.sync(names[0], 1, {})
    driver.sync(names[1], 1)
    assert driver.group().protocol_name == "range"
    call = driver.join(instance="b", protocols=[STICKY])
    assert driver.join_answer(call) is None
    assert driver.group().state == "PreparingRebalance"
    driver.join(names[0], instance="a", protocols=[RANGE, STICKY])
    assert driver.joined(call).protocol_name == "sticky"


def test_static_members_that_do_not_join_again_stay_until_their_session_ends(driver: ClassicGroupDriver) -> None:
    first, second = static_group(driver, "a", "b")
    call = driver.join(first, instance="a", rebalance_ms=5_000)
    driver.join(first, instance="a", rebalance_ms=5_000)
    for _ in range(12):
        driver.heartbeat(second, 1, instance="b")  # alive, but does not join
        driver.advance(5_000)
    assert E(driver.joined(call).error_code) is E.REBALANCE_IN_PROGRESS
    assert driver.group().state == "CompletingRebalance"
    assert list(driver.group().members) == [first, second]
    driver.sync(first, 2, {first: b"1", second: b"2"}, instance="a")
    assert driver.synced(driver.sync(second, 2, instance="b")).assignment == b"2"


def test_static_members_leave_by_their_instance_id(driver: ClassicGroupDriver) -> None:
    first, *_ = static_group(driver, "a", "b", "c")
    assert driver.leave(("", "b"), ("", "nobody"), ("", "")) == [E.NONE, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID]
    assert driver.group().state == "PreparingRebalance"
    assert sorted(driver.group().static_members) == ["a", "c"]
    assert driver.leave((first, "a")) == [E.NONE]


def test_a_static_member_that_is_silent_is_out_like_any_other(driver: ClassicGroupDriver) -> None:
    first, _ = static_group(driver, "a", "b")
    driver.advance(SESSION_MS - 6_000)
    driver.heartbeat(first, 1, instance="a")
    driver.advance(SESSION_MS - 1)
    assert list(driver.group().members) == [first]
    assert driver.group().static_members == {"a": first}


def test_a_static_member_that_joins_for_the_first_time_makes_a_stable_group_rebalance(
    driver: ClassicGroupDriver,
) -> None:
    static_group(driver, "a")
    call = driver.join(instance="b")
    assert driver.join_answer(call) is None
    assert driver.group().state == "PreparingRebalance"


def test_a_member_that_comes_back_before_it_synced_has_to_sync_under_its_new_id(driver: ClassicGroupDriver) -> None:
    calls = [driver.join(instance=name) for name in ("a", "b")]
    driver.advance(6_000)
    leader = driver.joined(calls[0]).member_id
    driver.sync(leader, 1, {leader: b"1", driver.joined(calls[1]).member_id: b"2"})
    new = driver.joined(driver.join(instance="b")).member_id
    assert list(driver.group().pending_syncs) == [new]
    assert driver.synced(driver.sync(new, 1, instance="b")).assignment == b"2"
    for _ in range(20):  # longer than the rebalance timeout: nothing is awaited any more
        driver.advance(5_000)
        assert driver.heartbeat(leader, 1, instance="a") is E.NONE
        assert driver.heartbeat(new, 1, instance="b") is E.NONE


def test_a_static_leader_that_does_not_join_again_stays_and_another_one_leads(driver: ClassicGroupDriver) -> None:
    first, second = static_group(driver, "a", "b")
    call = driver.join(second, instance="b", protocols=[RANGE, STICKY])
    for _ in range(12):
        driver.heartbeat(first, 1, instance="a")
        driver.advance(5_000)
    answer = driver.joined(call)
    assert (answer.generation_id, answer.leader) == (2, second)
    assert [member.member_id for member in answer.members] == [first, second]
    assert list(driver.group().members) == [first, second]
