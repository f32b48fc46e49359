"""The records that are held longest: of which locks the runs are read, and what is told of them."""

from __future__ import annotations

from kshare_console.views.oldest_acquired import OLDEST_LIMIT, OldestLock, acquired_runs, oldest_locks
from kshare_core.states import RecordState
from kshare_rpc.generated.kshare.v1 import leader_pb2

ORDERS, SECRET = b"o" * 16, b"s" * 16


def totals(**held_ms: int) -> leader_pb2.DescribeShareGroupTotalsResponse:
    """A leader's totals, of groups whose oldest lock is of orders-3."""
    found = leader_pb2.DescribeShareGroupTotalsResponse()
    for group_id, oldest_ms in held_ms.items():
        found.groups.add(group_id=group_id, oldest_acquired_ms=oldest_ms, oldest_topic_id=ORDERS, oldest_partition=3)
    return found


def test_the_oldest_locks_of_all_leaders_come_first() -> None:
    topics = {f"g{number}": {ORDERS: "orders"} for number in range(10)}
    answers: dict[str, leader_pb2.DescribeShareGroupTotalsResponse | str] = {
        "leader:1": totals(g0=5, g1=900, g2=0, g3=40, g4=41),
        "leader:2": "it does not answer",
        "leader:3": totals(g5=7, g6=1_000, g1=901, g7=6),
    }
    found = oldest_locks(answers, topics)
    assert [(lock.held_ms, lock.leader, lock.group_id) for lock in found] == [
        (1_000, "leader:3", "g6"),
        (901, "leader:3", "g1"),
        (900, "leader:1", "g1"),
        (41, "leader:1", "g4"),
        (40, "leader:1", "g3"),
    ]
    assert len(found) == OLDEST_LIMIT


def test_locks_of_groups_and_topics_that_the_user_may_not_see_are_left_out() -> None:
    answers = {"leader:1": totals(mine=5, other=900)}
    assert [lock.group_id for lock in oldest_locks(answers, {"mine": {ORDERS: "orders"}})] == ["mine"]
    assert oldest_locks(answers, {"mine": {SECRET: "secret"}}) == []


def test_a_run_says_who_holds_it_since_when() -> None:
    answer = leader_pb2.DescribeSharePartitionsResponse(lock_duration_ms=30_000)
    result = answer.results.add()
    result.runs.add(first_offset=4, last_offset=6, delivery_state=RecordState.AVAILABLE)
    held = {"delivery_state": RecordState.ACQUIRED, "delivery_count": 2, "member_id": "m", "lock_remaining_ms": 18_000}
    result.runs.add(first_offset=7, last_offset=9, **held)
    lock = OldestLock(12_000, "leader:1", "billing", ORDERS, 3)
    ((acquired_ms, run),) = acquired_runs(lock, "orders", answer, {"m": "worker-7"}, now_ms=1_000_000)
    assert acquired_ms == 988_000
    assert run == {
        "group_id": "billing",
        "topic": "orders",
        "partition": 3,
        "first_offset": 7,
        "last_offset": 9,
        "delivery_count": 2,
        "member_id": "m",
        "client_id": "worker-7",
        "acquired_ms": 988_000,
    }
