"""What an existing cluster and processes without disks go through, each on purpose; the rules are those of seeds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from support.simulation.evidence import Violation
from support.simulation.faults import Fault
from support.simulation.lost_logs import LostLogRun, lost_log_plan
from support.simulation.plan import Plan, draw_kafka_plan
from support.simulation.rules.fenced_logs import counted
from support.simulation.scenario import TOPIC, Outcome, SeedRun

STATE, METADATA = "__kshare_state", "__kshare_metadata"
BROKERS = ("broker-1", "broker-2", "broker-3")
ROLES = (
    "coordinator-1",
    "coordinator-2",
    "share-coordinator-1",
    "share-coordinator-2",
    "leader-1",
    "leader-2",
    "gateway-1",
)
STATE_PARTITIONS = 5
SECONDS = 40.0
SAID_TO_BE_LOST = "has lost confirmed records; what this node knows is written again"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def plan_of(seed: int, seconds: float = SECONDS) -> Plan:
    """Two of each role, three brokers, and enough records for the whole time.

    Without activities: nodes of an older version store no leader epochs, so that a state cannot be cut where a log was,
    and administered groups expect logs that lose nothing.
    """
    plan = draw_kafka_plan(seed)
    shape = replace(plan.shape, coordinators=2, share_coordinators=2, leaders=2, gateways=1, brokers=3)
    plan = replace(plan, activities=(), deletes_records=False, retains_little=False)
    return replace(plan, shape=shape, records=400, fault_seconds=seconds)


def claims(run: SeedRun, topic: str) -> int:
    """How often the topic's logs had a new owner."""
    logs = [partition.log for partition in run.cluster.upstream.topics[topic].partitions]
    return sum(not records for log in logs for records in counted([batch.data for batch in log.history]).values())


def run_with(plan: Plan, faults: Sequence[Fault]) -> tuple[SeedRun, Outcome]:
    run = SeedRun(plan, faults=faults)
    outcome = run.run()
    assert not outcome.failed, outcome.report()
    return run, outcome


@pytest.mark.parametrize("owner", ["share-coordinator", "coordinator"])
def test_two_owners_of_one_log_at_once(owner: str) -> None:
    """Each is replaced while its requests are under way, and goes on as long as it hears nothing else."""
    faults = [Fault(3.0 + 17 * number, "stale-owner", (f"{owner}-{number + 1}",), 15.0, 9.0) for number in range(2)]
    run, _ = run_with(plan_of(2), faults)
    topic, first = (STATE, STATE_PARTITIONS) if owner == "share-coordinator" else (METADATA, 1)
    assert claims(run, topic) > first, "nobody was replaced"


def test_a_share_coordinator_stands_still_in_the_middle_of_a_write() -> None:
    """Its requests are slow, so that most of the time one is under way; it wakes up after it was replaced."""
    slow = [
        Fault(2.0, "slow-link", (f"share-coordinator-{number}", each), 36.0, 1.0)
        for each in BROKERS
        for number in (1, 2)
    ]
    pauses = [Fault(3.0, "pause", ("share-coordinator-1",), 13.0), Fault(20.0, "pause", ("share-coordinator-2",), 13.0)]
    run, _ = run_with(plan_of(3), sorted([*slow, *pauses], key=lambda fault: fault.at))
    assert claims(run, STATE) > STATE_PARTITIONS, "nobody was replaced"


def test_every_process_dies_at_once_and_others_begin_with_nothing() -> None:
    run_with(plan_of(4, 25.0), [Fault(at, "crash", ROLES, 1.0) for at in (5.0, 15.0)])


def test_brokers_are_killed_and_rolled() -> None:
    faults = [
        Fault(3.0, "crash", ("broker-1",), 4.0),
        *(Fault(10.0 + 5 * number, "stop", (name,), 2.0) for number, name in enumerate(BROKERS)),
        Fault(27.0, "silent-crash", ("broker-2",), 6.0),
        Fault(35.0, "crash", BROKERS, 2.0),
    ]
    run_with(plan_of(5), faults)


def test_elections_are_not_taken_for_losses() -> None:
    """Brokers stop in order one after the other; a high watermark that is behind for a while is no lost record."""
    faults = [Fault(2.0 + 3 * number, "stop", (BROKERS[number % 3],), 0.5) for number in range(8)]
    plan = plan_of(10, 28.0)
    configs = {**plan.shape.configs, "share.coordinator.snapshot.update.records.per.snapshot": "3"}
    run_with(replace(plan, shape=replace(plan.shape, configs=configs)), faults)


async def lose_the_end(run: SeedRun, topic: str, share: float) -> int:
    """An unclean election in every partition of a topic, which loses this share of it; how much was lost."""
    lost = 0
    for partition in run.cluster.upstream.topics[topic].partitions:
        log = partition.log
        before = log.end
        run.cluster.upstream.elect_uncleanly(partition.at, log.start + int((log.end - log.start) * (1 - share)))
        lost += before - log.end
    return lost


class UncleanUserTopic(LostLogRun):
    """The topic that is produced to loses its end, twice."""

    lost = 0

    async def _let_faults_happen(self) -> None:
        async def elect() -> None:
            for _ in range(2):
                await asyncio.sleep(8.0)
                self.lost += await lose_the_end(self, TOPIC, 0.3)

        electing = self.loop.create_task(elect())
        await super()._let_faults_happen()
        await electing


@pytest.mark.parametrize("seed", [1, 2])
def test_no_record_is_skipped_or_comes_again_after_an_unclean_election(seed: int) -> None:
    run = UncleanUserTopic(lost_log_plan(plan_of(seed)), faults=[])
    outcome = run.run()
    assert not outcome.failed, outcome.report()
    assert run.lost > 0


class UncleanStateTopic(SeedRun):
    """The topic of the states loses its end. Its owners have the states in memory."""

    lost = 0

    async def _let_faults_happen(self) -> None:
        async def elect() -> None:
            await asyncio.sleep(8.0)
            self.lost = await lose_the_end(self, STATE, 0.5)

        electing = self.loop.create_task(elect())
        await super()._let_faults_happen()
        await electing

    def check_confirmations(self) -> list[Violation]:
        """None: the cluster lost what was confirmed."""
        return []


@pytest.mark.parametrize("seed", [1, 2])
def test_owners_bring_back_the_states_that_an_unclean_election_lost(seed: int) -> None:
    """Each says so in an error of its log, and no more than that happens."""
    run = UncleanStateTopic(plan_of(seed, 25.0), faults=[])
    outcome = run.run()
    said = [violation for violation in outcome.violations if SAID_TO_BE_LOST in violation.text]
    assert said and outcome.violations == said, outcome.report()
    assert run.lost > 0
