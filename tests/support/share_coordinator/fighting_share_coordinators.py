"""Share coordinators that fight for state partitions in an existing cluster, and clients that count what was confirmed.

A client writes one share-partition: unique offsets, acknowledged; now and then it reads with a higher leader epoch, as
a new leader does, or deletes the state and initializes it anew. Its operations follow each other. So an operation whose
outcome it was not told has taken effect before its next one that is confirmed, or never. What is answered without a
record, such as a refusal, is not looked at: a lease bounds it, and here leases never end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.identifiers import SharePartitionKey
from kshare_share_coordinator.machine.operations import (
    DeleteState,
    InitializeState,
    Operation,
    ReadState,
    Result,
    WriteState,
)
from kshare_share_coordinator.machine.share_group_offset import CorruptRecord, ShareGroupOffset
from kshare_share_coordinator.machine.state_batches import StateBatch
from kshare_share_coordinator.state_log.upstream import UpstreamStates
from support.share_coordinator.states_on_upstream import run

ACKNOWLEDGED = 2
PATIENCE_S = 5.0
"""How long a client waits for an answer before it asks another node."""


@dataclass
class Account:
    """What clients were told."""

    writes: int = 0
    reads: int = 0
    deletions: int = 0
    take_overs: int = 0
    problems: list[str] = field(default_factory=list)


def offsets_of(state: ShareGroupOffset | None) -> set[int]:
    batches: Sequence[StateBatch] = () if state is None else state.state_batches
    return {offset for batch in batches for offset in range(batch.first_offset, batch.last_offset + 1)}


class Client:
    """The only writer of one share-partition."""

    def __init__(self, key: SharePartitionKey, nodes: Sequence[UpstreamStates], account: Account, seed: str) -> None:
        self.key = key
        self.confirmed: set[int] = set()
        self.is_deleting = False
        """Whether the state may be gone, confirmed or not."""
        self._nodes = nodes
        self._account = account
        self._chance = random.Random(seed)
        self._numbers = count(0, 2)  # gaps, so that states grow, and updates are smaller than snapshots
        self._state_epoch = 0
        self._leader_epoch = 0
        self._node = nodes[0]

    async def live(self) -> None:
        while True:
            await self._initialize()
            while self._chance.random() > 0.01:
                await self._work()
            await self._delete()

    async def _initialize(self) -> None:
        self._state_epoch += 1
        while (await self._ask(InitializeState(self.key, self._state_epoch, 0))) is None:
            pass
        self.confirmed = set()
        self.is_deleting = False

    async def _delete(self) -> None:
        self.is_deleting = True
        while (await self._ask(DeleteState(self.key))) is None:
            pass
        self._account.deletions += 1

    async def _work(self) -> None:
        if self._chance.random() < 0.05:
            await self._read()
            return
        number = next(self._numbers)
        batches = [StateBatch(number, number, ACKNOWLEDGED, 1)]
        result = await self._ask(WriteState(self.key, self._state_epoch, self._leader_epoch, -1, 0, batches))
        if result is not None:
            self.confirmed.add(number)
            self._account.writes += 1

    async def _read(self) -> None:
        self._leader_epoch += 1
        known = set(self.confirmed)
        result = await self._ask(ReadState(self.key, self._leader_epoch))
        if result is None:
            return
        self._account.reads += 1
        missing = known - offsets_of(result.state)
        if missing:
            self._account.problems.append(f"a new leader of {self.key} was not told of {sorted(missing)}")

    async def _ask(self, operation: Operation) -> Result | None:
        """The result, if it was confirmed."""
        try:
            result = await asyncio.wait_for(run(self._node, operation), PATIENCE_S)
        except (StorageFailure, KafkaError, TimeoutError):
            result = Result(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if result.error_code == ErrorCode.NONE:
            await asyncio.sleep(self._chance.random() * 0.05)
            return result
        self._node = self._chance.choice(self._nodes)
        await asyncio.sleep(self._chance.random() * 0.2)
        return None


class Catalog:
    """Names owners at random, and does not tell those that it replaces."""

    def __init__(
        self, nodes: Sequence[UpstreamStates], state_partitions: int, account: Account, chance: random.Random
    ) -> None:
        self._nodes = nodes
        self._state_partitions = state_partitions
        self._account = account
        self._chance = chance
        self._epoch = 0

    async def live(self, longest_reign_s: float) -> None:
        for number in range(self._state_partitions):
            self.name(self._nodes[0], number)
        while True:
            await asyncio.sleep(self._chance.random() * longest_reign_s)
            self._account.take_overs += 1
            node, number = self._chance.choice(self._nodes), self._chance.randrange(self._state_partitions)
            if self._chance.random() < 0.3:
                self._chance.choice(self._nodes).lose(number)
            self.name(node, number)

    def name(self, node: UpstreamStates, number: int) -> None:
        self._epoch = max(self._epoch, node.highest_epoch) + 1
        node.gain(number, self._epoch)


def missing_in(states: Callable[[SharePartitionKey], ShareGroupOffset | None], clients: Sequence[Client]) -> list[str]:
    """What was confirmed and is not in the states that a fresh reader has."""
    found = []
    for client in clients:
        try:
            missing = set() if client.is_deleting else client.confirmed - offsets_of(states(client.key))
        except CorruptRecord as problem:
            found.append(f"a fresh reader cannot read the state of {client.key}: {problem}")
            continue
        if missing:
            found.append(f"a fresh reader does not find the writes {sorted(missing)} of {client.key}")
    return found
