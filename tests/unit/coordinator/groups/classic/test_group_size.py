"""The size of a classic group: it has to fit into one record, and its subscriptions are read in bounded time."""

from __future__ import annotations

import struct

import pytest

from kshare_coordinator.machine.groups.classic.consumer_protocol import SUBSCRIPTION_LIMIT, subscribed_topics
from kshare_coordinator.machine.groups.classic.group import ClassicMember, metadata_record, topics_of_members
from kshare_core.errors import ErrorCode as E
from support.groups.classic_driver import RANGE, ClassicGroupDriver, subscription

LIMIT = 64 * 1024
CONFIGS = {"kshare.group.max.bytes": str(LIMIT)}
INITIAL_DELAY_MS = 3_000


def padded(size: int) -> tuple[str, bytes]:
    return "range", subscription("t") + bytes(size)


@pytest.fixture
def driver() -> ClassicGroupDriver:
    return ClassicGroupDriver(CONFIGS)


def check_size(driver: ClassicGroupDriver) -> None:
    group = driver.group()
    assert group.stored_bytes == sum(member.stored_bytes for member in group.members.values())
    assigned = sum(len(member.assignment) for member in group.members.values())
    record = metadata_record(group).ByteSize() if group.members else 0
    assert group.stored_bytes + assigned >= record - 200


def test_a_join_that_makes_the_group_too_large_is_refused(driver: ClassicGroupDriver) -> None:
    first, second = driver.stable(2)
    check_size(driver)
    refused = driver.joined(driver.join(second, protocols=[padded(40_000)]))
    assert E(refused.error_code) is E.GROUP_MAX_SIZE_REACHED and driver.group().state == "Stable"
    assert E(driver.joined(driver.join(protocols=[padded(40_000)], version=3)).error_code) is E.GROUP_MAX_SIZE_REACHED
    assert set(driver.group().members) == {first, second}
    assert driver.join_answer(driver.join(second, protocols=[padded(20_000)])) is None
    check_size(driver)
    assert E(driver.joined(driver.join(protocols=[padded(15_000)], version=3)).error_code) is E.GROUP_MAX_SIZE_REACHED
    driver.join(first, protocols=[padded(5_000)])
    check_size(driver)


def test_what_a_member_has_already_makes_room_for_what_it_brings(driver: ClassicGroupDriver) -> None:
    """A static member that comes back under another id, and members of a group that is too large as it is."""
    call = driver.join(instance="i", protocols=[padded(20_000)])
    driver.advance(INITIAL_DELAY_MS)
    member_id = driver.joined(call).member_id
    driver.sync(member_id, 1, {member_id: b""}, instance="i")
    again = driver.joined(driver.join(instance="i", protocols=[padded(20_001)]))
    assert again.error_code == 0 and again.member_id != member_id
    check_size(driver)
    driver.restart()
    check_size(driver)
    driver.join(again.member_id, instance="i", protocols=[RANGE])
    check_size(driver)


def test_assignments_that_do_not_fit_into_the_record_are_refused(driver: ClassicGroupDriver) -> None:
    first, second = driver.stable(2)
    calls = [driver.join(first, protocols=[padded(5_000)]), driver.join(second, protocols=[padded(5_000)])]
    generation = driver.joined(calls[0]).generation_id
    waiting = driver.sync(second, generation)
    refused = driver.synced(driver.sync(first, generation, {first: bytes(30_000), second: bytes(30_000)}))
    assert {E(answer.error_code) for answer in (refused, driver.synced(waiting))} == {E.UNKNOWN_SERVER_ERROR}
    assert driver.group().state == "PreparingRebalance"
    assert driver.heartbeat(first, generation) is E.REBALANCE_IN_PROGRESS
    calls = [driver.join(first, protocols=[padded(5_000)]), driver.join(second, protocols=[padded(5_000)])]
    assert driver.joined(calls[0]).generation_id == generation + 1
    # Assignments of others do not count.
    assignments = {first: bytes(30_000), second: b"", "other": bytes(60_000)}
    assert driver.synced(driver.sync(first, generation + 1, assignments)).error_code == 0
    assert driver.group().state == "Stable"
    check_size(driver)


def test_a_subscription_of_too_many_names_counts_as_unknown() -> None:
    names = [f"{number:x}" for number in range(SUBSCRIPTION_LIMIT + 1)]
    assert subscribed_topics(subscription(*names[1:])) == names[1:]
    assert subscribed_topics(subscription(*names)) is None
    driver = ClassicGroupDriver()
    driver.join(protocols=[("range", subscription(*names))], version=3)
    driver.advance(INITIAL_DELAY_MS)
    assert driver.group().subscribed_topics is None and driver.group().is_subscribed_to("any")


def test_too_many_names_of_all_members_count_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kshare_coordinator.machine.groups.classic.group.NAMES_LIMIT", 5)
    members = [
        ClassicMember(rebalance_timeout_ms=1, session_timeout_ms=1, protocols=(("range", subscription(*names)),))
        for names in (["a", "b"], ["b", "c", "d"], ["a"])
    ]
    assert topics_of_members("consumer", "range", members[:2]) == frozenset("abcd")
    assert topics_of_members("consumer", "range", members) is None


def test_a_count_that_the_bytes_do_not_have_is_not_believed() -> None:
    assert subscribed_topics(struct.pack(">hi", 0, SUBSCRIPTION_LIMIT)) is None
