"""What others than producers and members of share groups do in a history: `plan.ACTIVITIES`, as far as it has them.

`begin` starts it, `end` ends what lasts as long as the faults do, `finished` waits for the rest and says what is late.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping, Sequence

from support.simulation.activities.administration import Administrator
from support.simulation.activities.consumer_groups import ConsumerGroups
from support.simulation.activities.operators import Operator
from support.simulation.cluster import EMBEDDED, Cluster
from support.simulation.evidence import Violation
from support.simulation.kafka_clients.admin import READ_COMMITTED
from support.simulation.kafka_clients.forger import Forger
from support.simulation.kafka_clients.log_reader import READ_UNCOMMITTED, LogReader
from support.simulation.kafka_clients.member import ShareMember
from support.simulation.kafka_clients.session import TopicMetadata
from support.simulation.plan import (
    ADMINISTRATION,
    CONSUMER_GROUPS,
    FORGERIES,
    MOVES,
    OFFSETS_IN_TRANSACTIONS,
    READERS,
    SCALING,
    STALLS,
    UPGRADES,
    UPGRADES_OF_ALL_ROLES,
    Plan,
)

FINISHED_WITHIN_S = 300.0
READ_WITHIN_S = 60.0
"""So long a reader takes to the end of all logs, at most."""


class Activities:
    """See the module's text."""

    def __init__(self, cluster: Cluster, plan: Plan, topic: str) -> None:
        self._plan = plan
        self._cluster = cluster
        self._topic = topic
        self._loop = cluster.loop
        self.operator = Operator(cluster, plan.seed)
        self.consumer_groups = ConsumerGroups(
            cluster, topic, plan.partitions, plan.seed, with_transactions=OFFSETS_IN_TRANSACTIONS in self
        )
        self.administrator = Administrator(cluster, topic, plan.partitions, plan.group_configs(""), plan.seed)
        self._readers = self._new_readers() if READERS in self else []
        self._lasting: list[asyncio.Task[None]] = []
        """Until the faults end."""
        self._ending: list[asyncio.Task[None]] = []
        """They end by themselves."""

    def __contains__(self, activity: str) -> bool:
        return activity in self._plan.activities

    @property
    def are_calm(self) -> bool:
        """Whether no leader of a partition changes by them."""
        return not {MOVES, SCALING, UPGRADES} & {*self._plan.activities}

    def prepare(self) -> None:
        """Before the cluster starts."""
        if UPGRADES in self:
            self.operator.choose_older_nodes(of_all_roles=UPGRADES_OF_ALL_ROLES in self)

    def begin(self, metadata: TopicMetadata, members: Mapping[str, Sequence[ShareMember]]) -> None:
        """`members` are those of the share groups, whenever it is looked at."""
        if MOVES in self:
            self._lasting.append(self._task(self.operator.move_at_random(), MOVES))
        if SCALING in self:
            self._ending.append(self._task(self.operator.scale(self._plan.fault_seconds), SCALING))
        if UPGRADES in self:
            self._ending.append(self._task(self.operator.upgrade_all(self._plan.fault_seconds), UPGRADES))
        if CONSUMER_GROUPS in self:
            self.consumer_groups.start(metadata)
            self._lasting.append(self._task(self.consumer_groups.disturb(), CONSUMER_GROUPS))

        if ADMINISTRATION in self:
            self._lasting.append(self._task(self.administrator.administer(metadata), ADMINISTRATION))
        if FORGERIES in self:
            forger = Forger(self._cluster.client("forger"), self._topic, metadata, self._plan.partitions)
            self._lasting.append(self._task(forger.forge_at_random(members), FORGERIES))
        for reader in self._readers:
            self._lasting.append(self._task(reader.read_at_random(), READERS))
        if STALLS in self:
            self._lasting.append(self._task(self._stall_members(members), STALLS))

    async def _stall_members(self, members: Mapping[str, Sequence[ShareMember]]) -> None:
        """Until it is cancelled: one member after the other stops working for a while, with all that it holds."""
        draw = random.Random(f"{self._plan.seed}/stalls")
        while True:
            await asyncio.sleep(1 + 6 * draw.random())
            member = draw.choice([member for of_group in members.values() for member in of_group])
            await member.stall(draw.choice((0.5, 1.0, 2.0)) * self._plan.lock_duration_ms / 1000)

    def _new_readers(self) -> list[LogReader]:
        """One that reads committed records, and in some seeds one that reads all."""
        draw = random.Random(f"{self._plan.seed}/readers")
        levels = draw.choice(((READ_COMMITTED,), (READ_COMMITTED,), (READ_COMMITTED, READ_UNCOMMITTED)))
        return [
            LogReader(
                self._cluster.client(f"reader-{number}"),
                self._topic,
                self._plan.partitions,
                level,
                random.Random(f"{self._plan.seed}/reader {number}"),
            )
            for number, level in enumerate(levels, 1)
        ]

    def _task(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        return self._loop.create_task(work, name=name)

    async def end(self) -> None:
        """With the faults; then nothing is asked for any more."""
        await stopped(self._lasting)
        await asyncio.wait_for(asyncio.gather(*self._ending), FINISHED_WITHIN_S)
        has_logs = self._plan.shape.engine == EMBEDDED
        if has_logs and (MOVES in self or SCALING in self):
            await self.operator.check_rows()

    async def finished(self) -> list[Violation]:
        """When the members of share groups are done; what is late then."""
        late = await self.administrator.check()
        if CONSUMER_GROUPS in self:
            late.extend(await self.consumer_groups.go_on())
            await self.consumer_groups.finish()
        for reader in self._readers:
            if missed := await reader.catch_up(READ_WITHIN_S):
                late.append(Violation("a reader stalled", f"{missed} after {READ_WITHIN_S:.0f} s without faults"))
        return late


async def stopped(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancels them; the exception of one that had ended by it is raised."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
