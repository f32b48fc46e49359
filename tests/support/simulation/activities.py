"""What others than producers and members of share groups do in a history: `plan.ACTIVITIES`, as far as it has them.

`begin` starts it, `end` ends what lasts as long as the faults do, `finished` waits for the rest and says what is late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence

from support.simulation.cluster import Cluster
from support.simulation.consumer_groups import ConsumerGroups
from support.simulation.evidence import Violation
from support.simulation.kafka_clients.session import TopicMetadata
from support.simulation.operators import Operator
from support.simulation.plan import CONSUMER_GROUPS, MOVES, SCALING, Plan

FINISHED_WITHIN_S = 300.0


class Activities:
    """See the module's text."""

    def __init__(self, cluster: Cluster, plan: Plan, topic: str) -> None:
        self._plan = plan
        self._loop = cluster.loop
        self.operator = Operator(cluster, plan.seed)
        self.consumer_groups = ConsumerGroups(cluster, topic, plan.partitions, plan.seed)
        self._lasting: list[asyncio.Task[None]] = []
        """Until the faults end."""
        self._ending: list[asyncio.Task[None]] = []
        """They end by themselves."""

    def __contains__(self, activity: str) -> bool:
        return activity in self._plan.activities

    @property
    def are_calm(self) -> bool:
        """Whether no leader of a partition changes by them."""
        return MOVES not in self and SCALING not in self

    def begin(self, metadata: TopicMetadata) -> None:
        if MOVES in self:
            self._lasting.append(self._task(self.operator.move_at_random(), MOVES))
        if SCALING in self:
            self._ending.append(self._task(self.operator.scale(self._plan.fault_seconds), SCALING))
        if CONSUMER_GROUPS in self:
            self.consumer_groups.start(metadata)
            self._lasting.append(self._task(self.consumer_groups.disturb(), CONSUMER_GROUPS))

    def _task(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        return self._loop.create_task(work, name=name)

    async def end(self) -> None:
        """With the faults; then nothing is asked for any more."""
        await stopped(self._lasting)
        await asyncio.wait_for(asyncio.gather(*self._ending), FINISHED_WITHIN_S)
        if not self.are_calm:
            await self.operator.check_rows()

    async def finished(self) -> list[Violation]:
        """When the members of share groups are done; what is late then."""
        if CONSUMER_GROUPS not in self:
            return []
        late = await self.consumer_groups.go_on()
        await self.consumer_groups.finish()
        return late


async def stopped(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancels them; the exception of one that had ended by it is raised."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
