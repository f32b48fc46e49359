"""Runs in which logs lose records that were confirmed: rules know records by their values (`rules.log_losses`).

`draw_lost_log_run` makes one of a swarm's seed: with its cluster, its members and its faults, and with leaders whose
disks are lost or older meanwhile. Producers are plain, and there are no activities: rules know no commits,
transactions and dead letters of records that are not there any more.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from support.simulation.cluster import EMBEDDED
from support.simulation.connections import ConnectionLost
from support.simulation.disks.kinds import DISK_KINDS
from support.simulation.evidence import Evidence, Expectations, Violation
from support.simulation.faults import Fault
from support.simulation.kafka_clients.session import ClusterClient
from support.simulation.mutations import Mutation
from support.simulation.plan import STALLS, Plan
from support.simulation.rules.log_losses import confirmed_ends_stay, records_of_the_log_end_as_themselves
from support.simulation.scenario import TOPIC, SeedRun
from support.simulation.scripted import produce_to
from support.simulation.seeds.script import draw_script
from support.simulation.swarm import draw_swarm_plan

RECORDS_PER_PARTITION = 150
FAULT_SECONDS = 30.0
LOSSES = {kind.name: kind for kind in DISK_KINDS if kind.name in ("disk-lost", "disk-older")}
COUNTS = (1, 1, 2, 3)
"""Of losses in a seed."""


class LostLogRun(SeedRun):
    """A plan's run with plain producers, which try again until a batch is confirmed, and rules by records' values."""

    def __init__(self, plan: Plan, mutation: Mutation | None = None, *, faults: Sequence[Fault]) -> None:
        super().__init__(plan, mutation, faults=faults)
        self._sent_at: dict[str, float] = {}
        """When each value was sent: each is sent once."""

    def check(self, expectations: Expectations) -> list[Violation]:
        evidence = Evidence(self.cluster.history, expectations)
        rules = (records_of_the_log_end_as_themselves(evidence, self._sent_at), confirmed_ends_stay(evidence))
        return [violation for rule in rules for violation in islice(rule, 3)]

    async def _produce(self) -> None:
        await asyncio.gather(*(self._produce_to(index) for index in range(self.plan.partitions)))

    async def _produce_to(self, partition: int) -> None:
        client = self.cluster.log_client(f"plain-{partition}")
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
            self._sent_at.update((value, client.now()) for value in values)
            return metadata is not None and await produce_to(client, TOPIC, metadata, values, partition) is not None
        except ConnectionLost:
            return False


def lost_log_plan(plan: Plan) -> Plan:
    """The plan with plain producers only, and nothing else that deletes records."""
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


def draw_lost_log_run(seed: int, mutation: Mutation | None = None) -> LostLogRun:
    """The seed of the embedded engine, with leaders whose disks are lost or older; these have a stream of their own."""
    plan = draw_swarm_plan(seed, EMBEDDED)
    activities = tuple(activity for activity in plan.activities if activity == STALLS)
    plan = replace(lost_log_plan(plan), fault_count=plan.fault_count, activities=activities)
    draw = random.Random(f"{seed}/lost disks")
    hosts = plan.shape.host_names()
    leaders = [host for host in hosts if host.startswith("leader")]
    losses = _one_after_the_other([_draw_loss(draw, leaders) for _ in range(draw.choice(COUNTS))])
    faults = sorted([*draw_script(plan, hosts).faults, *losses], key=lambda fault: (fault.at, fault.name))
    return LostLogRun(plan, mutation, faults=faults)


def _one_after_the_other(losses: Sequence[Fault]) -> list[Fault]:
    """Without those that begin while another one of the same leader lasts.

    The copy that such a one puts back has records that the other one has removed: they come back without their state.
    """
    kept: list[Fault] = []
    for loss in sorted(losses, key=lambda fault: fault.at):
        if not any(other.hosts == loss.hosts and loss.at <= other.at + other.duration for other in kept):
            kept.append(loss)
    return kept


def _draw_loss(draw: random.Random, leaders: list[str]) -> Fault:
    """While records are there, and while there is time for more of them."""
    return LOSSES[draw.choice(list(LOSSES))].draw(draw, leaders, FAULT_SECONDS * draw.uniform(0.1, 0.7))
