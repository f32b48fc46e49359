"""The plans of `kshare detach`: what is set in the cluster, what is delivered again, and what forbids it."""

from __future__ import annotations

import pytest

from kshare.commands.state.group_state import Run, SharePartitionState
from kshare.detach.plan import (
    DetachPlan,
    GroupAtCluster,
    GroupAtKshare,
    finished_above_start,
    first_unfinished,
    plan_group,
)
from kshare_core.identifiers import SharePartitionKey
from kshare_core.states import RecordState

TOPIC_ID, OTHER_ID = b"i" * 16, b"o" * 16
CONFIGS = {"share.record.lock.duration.ms": "9000", "share.of.later": "1"}


def state(
    partition: int, start_offset: int, *runs: Run, problem: str | None = None, topic_id: bytes = TOPIC_ID
) -> SharePartitionState:
    key = SharePartitionKey("g", topic_id, partition)
    return SharePartitionState(topic="orders", key=key, start_offset=start_offset, runs=runs, problem=problem)


def planned(
    *states: SharePartitionState,
    members: tuple[str, ...] = (),
    theirs: dict[int, int] | None = None,
    kind: str = "",
    their_members: tuple[str, ...] = (),
    their_configs: dict[str, str] | None = None,
    may_go_back: bool = False,
) -> DetachPlan:
    ours = GroupAtKshare(group_id="g", members=members, states=states, configs=CONFIGS)
    cluster = GroupAtCluster(
        kind=kind,
        members=their_members,
        start_offsets={("orders", partition): offset for partition, offset in (theirs or {}).items()},
        configs=their_configs or {},
        known_configs=frozenset({"share.record.lock.duration.ms", "share.auto.offset.reset"}),
    )
    return plan_group(ours, cluster, {"orders": TOPIC_ID}, may_go_back=may_go_back)


def test_records_that_are_delivered_again() -> None:
    runs = [
        Run(5, 6, RecordState.ACKNOWLEDGED, 1),
        Run(7, 9, RecordState.AVAILABLE, 1),
        Run(10, 10, RecordState.ARCHIVED, 5),
        Run(11, 14, RecordState.ACQUIRED, 1),
        Run(15, 15, RecordState.ARCHIVING, 5),
        Run(16, 20, RecordState.ACKNOWLEDGED, 1),
    ]
    assert finished_above_start(state(0, 7, *runs)) == 1 + 1 + 5
    assert finished_above_start(state(0, 21, *runs)) == 0
    between = [Run(7, 7, RecordState.AVAILABLE, 1), Run(8, 12, RecordState.ACKNOWLEDGED, 1)]
    assert finished_above_start(state(0, 10, *between)) == 0, "a run that begins below the start offset"


def test_a_stored_start_offset_before_finished_records() -> None:
    finished = [Run(5, 6, RecordState.ACKNOWLEDGED, 1), Run(7, 9, RecordState.ARCHIVED, 5)]
    letter = Run(10, 10, RecordState.ARCHIVING, 5)
    assert first_unfinished(state(0, 5, *finished, letter)) == 10, "its letter may not be written yet"
    assert first_unfinished(state(0, 6, *finished)) == 10
    assert first_unfinished(state(0, 4, *finished)) == 4, "offset 4 was not delivered"
    assert first_unfinished(state(0, 5, finished[0], Run(8, 9, RecordState.ARCHIVED, 5))) == 7
    assert first_unfinished(state(0, 12, *finished)) == 12
    (only,) = planned(state(0, 5, *finished, letter)).partitions
    assert (only.start_offset, only.again) == (10, 1)


def test_start_offsets() -> None:
    plan = planned(state(0, 7), state(1, -1), state(2, 0), state(3, 9), theirs={2: -1, 3: 9}, kind="share")
    assert plan.problem is None
    assert plan.offsets_to_set == {("orders", 0): 7, ("orders", 2): 0}, "1 has none, 3 has it"
    assert [(each.partition, each.before) for each in plan.partitions] == [(0, -1), (2, -1), (3, 9)]
    behind = planned(state(0, 7), theirs={0: 3}, kind="share")
    assert behind.problem is None and behind.offsets_to_set == {("orders", 0): 7}


def test_a_group_that_is_further_in_the_cluster() -> None:
    states = [state(partition, 7) for partition in range(12)]
    plan = planned(*states, theirs=dict.fromkeys(range(12), 8), kind="share")
    assert plan.problem is not None and "orders:9 (at 8, kshare's at 7) and 2 more; " in plan.problem
    allowed = planned(*states, theirs=dict.fromkeys(range(12), 8), kind="share", may_go_back=True)
    assert allowed.problem is None and len(allowed.offsets_to_set) == 12


def test_configs() -> None:
    plan = planned(state(0, 7))
    assert plan.configs == {"share.record.lock.duration.ms": "9000"} and plan.left_out == {"share.of.later": "1"}
    assert planned(state(0, 7), their_configs={"share.record.lock.duration.ms": "1"}).configs == {}


@pytest.mark.parametrize("may_go_back", [False, True])
@pytest.mark.parametrize(
    ("plan_of", "told"),
    [
        ({"members": ("a (x at /h)", "b (y at /h)")}, "group g has members at kshare, stop them first: a (x at /h), b"),
        ({"their_members": ("c",), "kind": "share"}, "group g has members in the cluster already, stop them first: c"),
        ({"kind": "consumer"}, "group g exists in the cluster as a group of type consumer"),
    ],
)
def test_what_forbids_it(plan_of: dict[str, object], told: str, may_go_back: bool) -> None:
    plan = planned(state(0, 7), may_go_back=may_go_back, **plan_of)  # type: ignore[arg-type]
    assert plan.problem is not None and plan.problem.startswith(told)


def test_a_state_that_cannot_be_read_or_is_of_another_cluster() -> None:
    unread = planned(state(0, 7), state(1, 0, problem="NOT_COORDINATOR")).problem
    assert unread == "the state of group g in orders:1 cannot be read: NOT_COORDINATOR"
    other = planned(state(0, 7, topic_id=OTHER_ID)).problem
    assert other is not None and "another topic id: it is not the cluster of this kshare" in other
