"""Runs in which logs lose records that were confirmed: rules know records by their values (`rules.log_losses`)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import islice

from support.simulation.connections import ConnectionLost
from support.simulation.evidence import Evidence, Expectations, Violation
from support.simulation.kafka_clients.session import ClusterClient
from support.simulation.plan import Plan
from support.simulation.rules.log_losses import confirmed_ends_stay, records_of_the_log_end_as_themselves
from support.simulation.scenario import TOPIC, SeedRun
from support.simulation.scripted import produce_to

RECORDS_PER_PARTITION = 150
FAULT_SECONDS = 30.0


class LostLogRun(SeedRun):
    """A plan's run with plain producers, which try again until a batch is confirmed, and rules by records' values."""

    def check(self, expectations: Expectations) -> list[Violation]:
        evidence = Evidence(self.cluster.history, expectations)
        rules = (records_of_the_log_end_as_themselves(evidence), confirmed_ends_stay(evidence))
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
