"""A leader's disk is lost, or is older than the state, in the middle of a run with other faults.

State and log must not disagree without a word: what is in the logs at the end was delivered to its end as itself, the
start offsets reach the logs' ends, and each cut of a state is in the history.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from kshare_core.leader_epochs import EpochEntry
from kshare_leader.log.partition_log import PartitionLog
from support.simulation.faults import Fault
from support.simulation.lost_logs import LOSSES, LostLogRun, draw_lost_log_run, lost_log_plan
from support.simulation.mutations.mutation import Patch, planted
from support.simulation.plan import draw_plan

LEADER, SHARE_COORDINATOR, COORDINATOR = "leader-1", "share-coordinator-1", "coordinator-1"


def faults_of(kind: str, seed: int) -> Sequence[Fault]:
    """The fault about the disk at a time of the seed's, and others around it."""
    draw = random.Random(f"{seed}/{kind}")
    lost = Fault(8 + 6 * draw.random(), "disk-lost", (LEADER,), 0.1 + draw.random())
    older = Fault(6 + 4 * draw.random(), "disk-older", (LEADER,), 1 + 8 * draw.random())
    after = (older.at + older.duration) if kind == "older" else lost.at + lost.duration
    around = [
        Fault(after + 0.2 + 2 * draw.random(), "crash", (LEADER,), 0.2),
        Fault(after + 3 * draw.random(), "silent-crash", (SHARE_COORDINATOR,), 0.5),
        Fault(after + 2 * draw.random(), "slow-host", (SHARE_COORDINATOR,), 3.0, 0.5),
        Fault(after + 3 * draw.random(), "cut", (LEADER, SHARE_COORDINATOR)),
    ]
    of_the_disk = {"lost": [lost], "older": [older], "older, then lost": [older, replace(lost, at=lost.at + 12)]}[kind]
    return sorted([*of_the_disk, *draw.sample(around, draw.randint(0, len(around)))], key=lambda fault: fault.at)


@pytest.mark.parametrize("kind", ["lost", "older", "older, then lost"])
@pytest.mark.parametrize("seed", range(1, 5))
def test_no_record_is_skipped_or_comes_again_when_a_disk_is_lost_or_older(kind: str, seed: int) -> None:
    outcome = LostLogRun(lost_log_plan(draw_plan(seed)), faults=faults_of(kind, seed)).run()
    assert not outcome.failed, outcome.report()


@pytest.mark.parametrize("seed", [3, 5, 19])
def test_a_seed_of_the_swarm_may_lose_disks(seed: int) -> None:
    run = draw_lost_log_run(seed)
    outcome = run.run()
    assert not outcome.failed, outcome.report()
    assert sum(run.injector.met[name] for name in LOSSES) > 1
    assert len(outcome.faults) > sum(fault.name in LOSSES for fault in outcome.faults), "and it has other faults"


def _compare_ends_only(diverging_offset: object) -> Callable[..., Awaitable[int | None]]:
    """A log that has grown again to the end of the state is taken for the log that the state is of."""

    async def changed(log: PartitionLog, known: Sequence[EpochEntry], end_offset: int) -> int | None:
        return log.high_watermark if end_offset > log.high_watermark else None

    return changed


def test_a_leader_that_does_not_compare_the_histories_of_leader_epochs_is_found() -> None:
    """In the seeds of the swarm that lose disks."""
    mutation = planted(Patch(PartitionLog, "diverging_offset", _compare_ends_only))
    for seed in range(1, 21):
        outcome = draw_lost_log_run(seed, mutation()).run()
        if {violation.rule for violation in outcome.violations} & {"skipped", "delivered after its confirmation"}:
            return
    raise AssertionError("20 seeds did not notice it")
