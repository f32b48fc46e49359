"""A leader's disk is lost, or is older than the state, in the middle of a run with other faults.

State and log must not disagree without a word: what is in the logs at the end was delivered to its end as itself, the
start offsets reach the logs' ends, and each cut of a state is in the history.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import pytest

from support.simulation.connections import ConnectionLost
from support.simulation.evidence import Evidence, Expectations, Violation
from support.simulation.faults import Fault
from support.simulation.kafka_clients.session import ClusterClient
from support.simulation.plan import Plan, draw_plan
from support.simulation.rules.log_losses import confirmed_ends_stay, records_of_the_log_end_as_themselves
from support.simulation.scenario import TOPIC, SeedRun
from support.simulation.scripted import produce_to

RECORDS_PER_PARTITION = 150
FAULT_SECONDS = 30.0
LEADER, SHARE_COORDINATOR, COORDINATOR = "leader-1", "share-coordinator-1", "coordinator-1"


class LostLogRun(SeedRun):
    """A plan's run with plain producers, which try again until a batch is confirmed, and rules by records' values."""

    def check(self, expectations: Expectations) -> list[Violation]:
        evidence = Evidence(self.cluster.history, expectations)
        rules = (records_of_the_log_end_as_themselves(evidence), confirmed_ends_stay(evidence))
        return [violation for rule in rules for violation in islice(rule, 3)]

    async def _produce(self) -> None:
        await asyncio.gather(*(self._produce_to(index) for index in range(self.plan.partitions)))

    async def _produce_to(self, partition: int) -> None:
        client = self.cluster.client(f"plain-{partition}")
        made = 0
        while made < RECORDS_PER_PARTITION:
            size = self.random.choice((1, 3, 10))
            attempt = 0
            while not await self._try(client, partition, [f"r{partition}-{made + n}/{attempt}" for n in range(size)]):
                attempt += 1
                await asyncio.sleep(0.3)
            made += size
            await asyncio.sleep(FAULT_SECONDS * size / RECORDS_PER_PARTITION)

    async def _try(self, client: ClusterClient, partition: int, values: list[str]) -> bool:
        """Whether the batch was confirmed; each attempt has values of its own, because an earlier one may be stored."""
        try:
            metadata = await client.metadata(TOPIC)
            return metadata is not None and await produce_to(client, TOPIC, metadata, values, partition) is not None
        except ConnectionLost:
            return False


def plan_of(seed: int) -> Plan:
    plan = draw_plan(seed)
    return replace(
        plan,
        transactional_producers=0,
        committed_groups=(),
        dead_letter_groups=(),
        deletes_records=False,
        retains_little=False,
        fault_seconds=FAULT_SECONDS,
        fault_count=0,
    )


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
    outcome = LostLogRun(plan_of(seed), faults=faults_of(kind, seed)).run()
    assert not outcome.failed, outcome.report()
