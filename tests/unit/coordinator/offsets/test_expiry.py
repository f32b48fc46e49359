"""The expiry of offsets in portions, each of which takes a short time."""

from __future__ import annotations

import pytest

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.groups.classic.group import ClassicGroup
from kshare_coordinator.machine.groups.namespace import classic_group
from kshare_coordinator.machine.offsets import commits
from kshare_coordinator.machine.state import CoordinatorState
from kshare_coordinator.offsets_expiry import GROUPS_AT_ONCE, OFFSETS_AT_ONCE, portions_of_groups
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver

MINUTE_MS = 60_000


def committed(driver: CoordinatorDriver, group_id: str, count: int) -> None:
    offsets = [pb.CommittedOffset(topic_name="t", partition=number, committed_offset=1) for number in range(count)]
    request = pb.OffsetCommitRequest(
        group_id=group_id, generation_id_or_member_epoch=-1, offsets=offsets, api_version=8
    )
    driver.run(commands.OffsetCommit(request=request))


@pytest.fixture
def driver() -> CoordinatorDriver:
    driver = CoordinatorDriver({"offsets.retention.minutes": "1"})
    driver.create_topic("t", 30)
    return driver


def test_portions_have_a_limited_number_of_offsets_and_groups(driver: CoordinatorDriver) -> None:
    committed(driver, "g", 1)
    ((_, value),) = driver.state.offsets.committed["g"].items()

    def state_with(*counts: int) -> CoordinatorState:
        state = CoordinatorState()
        for index, count in enumerate(counts):
            state.offsets.committed[f"{index}"] = {TopicPartition(b"t", n): value for n in range(count)}
        return state

    def sizes(*counts: int) -> list[int]:
        found = list(portions_of_groups(state_with(*counts), [f"{index}" for index in range(len(counts))]))
        assert [each for portion in found for each in portion] == [f"{index}" for index in range(len(counts))]
        return [len(portion) for portion in found]

    most = OFFSETS_AT_ONCE
    assert sizes() == []
    assert sizes(*[0] * (2 * GROUPS_AT_ONCE + 1)) == [GROUPS_AT_ONCE, GROUPS_AT_ONCE, 1]
    assert sizes(most - 2, 1, 1, 1) == [3, 1]
    assert sizes(1, most + 1, 1, 2) == [1, 1, 2]


def test_a_command_removes_a_limited_number(driver: CoordinatorDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "EXPIRED_AT_ONCE", 20)
    for group_id, count in [("a", 5), ("b", 28), ("c", 3)]:
        committed(driver, group_id, count)
    driver.now_ms += MINUTE_MS
    command = commands.ExpireOffsets(group_ids=("a", "b", "c"))
    assert driver.run(command) == 20
    assert {name: len(rows) for name, rows in driver.state.offsets.committed.items()} == {"b": 13, "c": 3}
    assert [driver.run(command) for _ in range(2)] == [16, 0]
    assert not driver.state.offsets.committed


def test_the_group_is_looked_at_once(driver: CoordinatorDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each of its offsets."""
    committed(driver, "g", 30)
    looks: list[str] = []
    look = classic_group

    def counted(state: CoordinatorState, group_id: str) -> ClassicGroup | None:
        looks.append(group_id)
        return look(state, group_id)

    monkeypatch.setattr("kshare_coordinator.machine.offsets.permissions.classic_group", counted)
    assert driver.run(commands.ExpireOffsets(group_ids=("g",))) == 0
    driver.now_ms += MINUTE_MS
    assert driver.run(commands.ExpireOffsets(group_ids=("g",))) == 30
    assert len(looks) <= 4
