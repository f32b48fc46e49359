"""A run of the simulation in which topic partitions move between two leaders under load.

All partitions of all topics, those of dead letters too, move to leader 2, back to leader 1, and so on, over a slow
network between the roles that take part, so that clients meet every stage of a move. One of the hosts can be killed at
one step of the first move: a call of the move that arrives, before it is handled, or that is done, before its answer is
sent. Whoever dies, each move ends complete or undone, and can be asked for again. At the end each leader has the rows
of the partitions that it leads and no others; what the producers, the transactions, the members and the dead letters
saw is the checker's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from google.protobuf.message import Message

from kshare_core.identifiers import TopicPartition
from kshare_leader.log import keys
from kshare_leader.node import LeaderNode
from kshare_leader.reassignment.rows import MARK
from kshare_leader.settings import LeaderSettings
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import (
    ADVANCE_PARTITION_MOVE,
    DESCRIBE_PARTITIONS,
    MOVE_PARTITIONS,
    TRANSFER_PARTITION,
)
from kshare_rpc.network import CallFailed, Method, Network
from kshare_runtime.ports import Environment
from support.simulation.cluster import COORDINATOR, OBSERVER, RPC_PORT, Cluster, Shape
from support.simulation.faults import Fault, FaultInjector
from support.simulation.history import FaultEvent
from support.simulation.hosts import BuildNode, Node, SimulatedHost
from support.simulation.loop import Incarnation, VirtualLoop
from support.simulation.mutations import Mutation
from support.simulation.network import SimulatedNetwork, in_no_host
from support.simulation.plan import Plan
from support.simulation.scenario import Outcome, SeedRun
from support.simulation.swarm import FAULT_KINDS

PAGE_BYTES = 2_000
CALL_TIMEOUT_MS = 2_000
BEGIN_AFTER_S = 1.0
DOWN_S = 0.4
SETTLED_WITHIN_S = 60.0
LEADERS = ("leader-1", "leader-2")
HOSTS = (COORDINATOR, *LEADERS)
SLOW_S = 0.04
"""What a message between two of these takes at most: a fence lasts for some tenths of a second."""


class Step(NamedTuple):
    """A call of a move that arrives, or that is done; `detail` tells calls of one method apart."""

    method: Method[Any, Any]
    detail: str
    is_done: bool

    def __str__(self) -> str:
        return f"{self.method.name} {self.detail} {'done' if self.is_done else 'arrives'}"


def step_of(method: Method[Any, Any], request: Any, answer: Message | None) -> Step | None:
    """None: no call of a move."""
    if method == TRANSFER_PARTITION:
        return Step(method, "fenced" if request.is_fenced else "served", answer is not None)
    if method == ADVANCE_PARTITION_MOVE:
        return Step(method, pb.AdvancePartitionMoveRequest.Step.Name(request.step), answer is not None)
    return Step(method, "", answer is not None) if method == MOVE_PARTITIONS else None


STEPS = [
    Step(method, detail, is_done)
    for method, detail in (
        (MOVE_PARTITIONS, ""),
        (TRANSFER_PARTITION, "served"),
        (ADVANCE_PARTITION_MOVE, "FENCE"),
        (TRANSFER_PARTITION, "fenced"),
        (ADVANCE_PARTITION_MOVE, "COMPLETE"),
    )
    for is_done in (False, True)
]


class PagedCluster(Cluster):
    """Copies take many pages even where there is little to copy."""

    def _build(self, role: str, number: int) -> BuildNode:
        if role != "leader":
            return super()._build(role, number)

        def build(environment: Environment, network: Network, host: SimulatedHost) -> Node:
            settings = LeaderSettings(
                node_id=number,
                listen=f"{host.name}:{RPC_PORT}",
                coordinator_address=f"{COORDINATOR}:{RPC_PORT}",
                configs=self.configs,
                move_page_bytes=PAGE_BYTES,
            )
            network = self._mutation.network(role, network)
            return LeaderNode(environment=environment, network=network, settings=settings)

        return build


class MovingRun(SeedRun):
    """See the module's text. `skip`: how often the step passes before the victims die.

    `slow_hosts`: between which calls take up to SLOW_S.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        step: Step | None = None,
        victims: Sequence[str] = (),
        skip: int = 0,
        rounds: int = 2,
        faults: Sequence[Fault] | None = None,
        mutation: Mutation | None = None,
        slow_hosts: Sequence[str] = HOSTS,
    ) -> None:
        super().__init__(plan, mutation, faults=faults)
        self.slow_hosts = slow_hosts
        self.cluster = PagedCluster(self.loop, f"moving {plan.seed}", plan.shape, mutation)
        self.injector = FaultInjector(self.cluster, random.Random(f"{plan.seed}/injector"), FAULT_KINDS)
        self._observer = SimulatedNetwork(self.cluster.fabric, Incarnation(OBSERVER, 1))
        self.cluster.fabric.taps.append(self._watch)
        self.step = step
        self.victims = victims
        self.skip = skip
        self.rounds = rounds
        self.seen: dict[Step, int] = {}
        self.has_killed = False
        self.switches = 0
        self._with_faults = faults is not None or (step is None and plan.fault_count > 0)

    @property
    def _is_orderly(self) -> bool:
        return self.step is None and not self._with_faults

    def _watch(
        self, source: str, target: str, method: Method[Any, Any], request: Any, answer: Message | None, sent_at: float
    ) -> None:
        step = step_of(method, request, answer)
        if step is None:
            return
        self.seen[step] = self.seen.get(step, 0) + 1
        if step != self.step or self.has_killed or self.seen[step] <= self.skip:
            return
        self.has_killed = True
        loop: VirtualLoop = self.loop
        self.cluster.history.add(FaultEvent(loop.now_s, "crash", tuple(self.victims), str(step)))
        for name in self.victims:
            host = self.cluster.hosts[name]
            in_no_host(loop, loop.now_s, host.crash)
            in_no_host(loop, loop.now_s + DOWN_S, host.start)

    # Instead of a seed's faults, or beside them

    async def _let_faults_happen(self) -> None:
        if self._with_faults:
            moving = self.loop.create_task(self._move_at_random(), name="moving at random")
            await super()._let_faults_happen()
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)
            await self._settled()
        else:
            self.faults = [Fault(self.loop.now_s, "moves of partitions", LEADERS)]
            for first in self.slow_hosts:
                for second in self.slow_hosts:
                    self.cluster.fabric.conditions.link_latency[first, second] = SLOW_S
            await asyncio.sleep(BEGIN_AFTER_S)
            for number in range(self.rounds):
                await self._move_all(2 if number % 2 == 0 else 1)
            self.cluster.fabric.conditions.link_latency.clear()
        await self._check_rows()

    async def _move_at_random(self) -> None:
        draw = random.Random(f"{self.plan.seed}/moves")
        while True:
            await asyncio.sleep(draw.choice((0.05, 0.5, 3.0)) * draw.random())
            topics = await self._topics() or []
            named = [(topic.name, partition.partition) for topic in topics for partition in topic.partitions]
            number = draw.randint(1, self.plan.shape.leaders)
            self.cluster.history.add(FaultEvent(self.loop.now_s, "moves", (f"leader-{number}",), ""))
            await self._ask([name for name in named if draw.random() < 0.7], number, cancel=draw.random() < 0.2)

    async def _move_all(self, to: int) -> None:
        """Each move is complete or undone; those that are undone are asked for until they are complete."""
        deadline = self.loop.now_s + SETTLED_WITHIN_S
        while True:
            left = [
                (topic.name, partition.partition)
                for topic in await self._settled()
                for partition in topic.partitions
                if partition.leader_node_id != to
            ]
            if not left:
                self.switches += 1
                return
            assert self.loop.now_s < deadline, f"partitions {left} did not get to leader {to}"
            await self._ask(left, to)
            await asyncio.sleep(0.1)

    async def _ask(self, partitions: Sequence[tuple[str, int]], to: int, *, cancel: bool = False) -> None:
        named = [pb.NamedPartitions(topic_name=topic, partitions=[partition]) for topic, partition in partitions]
        request = pb.MovePartitionsRequest(topics=named, to_node_id=to, cancel=cancel)
        await self._call(MOVE_PARTITIONS, request)

    async def _topics(self) -> list[pb.Topic] | None:
        """None while the coordinator is down."""
        answer = await self._call(DESCRIBE_PARTITIONS, pb.DescribePartitionsRequest())
        return None if answer is None else list(answer.topics)

    async def _settled(self) -> list[pb.Topic]:
        """All topics when nothing moves any more."""
        deadline = self.loop.now_s + SETTLED_WITHIN_S
        while True:
            topics = await self._topics()
            if topics and not any(partition.is_moving for topic in topics for partition in topic.partitions):
                return topics
            assert self.loop.now_s < deadline, f"after {SETTLED_WITHIN_S} s something still moves: {topics}"
            await asyncio.sleep(0.1)

    async def _call(self, method: Method[Any, Any], request: Any) -> Any:
        """The answer; None where there is none, as the coordinator may be down."""
        try:
            channel = self._observer.connect(f"{COORDINATOR}:{RPC_PORT}")
            answer, _ = await channel.call(method, request, timeout_ms=CALL_TIMEOUT_MS)
        except CallFailed:
            return None
        return answer

    # The end

    async def _check_rows(self) -> None:
        """Each leader has the rows of the partitions that it leads, and of no others; no mark is left."""
        deadline = self.loop.now_s + SETTLED_WITHIN_S
        while problem := self._misplaced(await self._settled()):
            assert self.loop.now_s < deadline, f"after {SETTLED_WITHIN_S} s {problem}"
            await asyncio.sleep(0.5)

    def _misplaced(self, topics: Sequence[pb.Topic]) -> str | None:
        for number in range(1, self.plan.shape.leaders + 1):
            node = self.cluster.hosts[f"leader-{number}"].node
            store = node._engine.store if isinstance(node, LeaderNode) and node._engine is not None else None
            if store is None:
                return f"leader {number} is not up"
            if (mark := next(store.scan(keys.META, MARK, MARK + b"\xff"), None)) is not None:
                return f"leader {number} has the mark {mark!r}"
            for topic in topics:
                for partition in topic.partitions:
                    prefix = keys.partition_prefix(TopicPartition(topic.topic_id, partition.partition))
                    found = [
                        family
                        for family in keys.PARTITION_FAMILIES
                        if next(store.scan(family, prefix, keys.after_prefix(prefix)), None) is not None
                    ]
                    if found and partition.leader_node_id != number:
                        return f"leader {number} has rows of {topic.name}:{partition.partition} in {found}"
        return None


def moving_plan(seed: int, **changes: Any) -> Plan:
    """A small cluster with everything: transactions, dead letters, read_committed, deleted records."""
    values: dict[str, Any] = {
        "seed": seed,
        "shape": Shape(
            share_coordinators=1,
            leaders=2,
            gateways=2,
            configs={
                "group.share.min.record.lock.duration.ms": "1000",
                "group.share.record.lock.duration.ms": "3000",
                "share.coordinator.state.topic.num.partitions": "2",
                "num.partitions": "2",
                "errors.deadletterqueue.auto.create.topics.enable": "true",
                "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
                "log.initial.task.delay.ms": "1000",
                "log.message.timestamp.after.max.ms": str((1 << 63) - 1),
                "log.retention.check.interval.ms": "2000",
                "kshare.node.lease.ms": "3000",
            },
        ),
        "partitions": 2,
        "groups": ("g1", "g2"),
        "members_per_group": 2,
        "producers": 1,
        "records": 1_500,
        "transactional_producers": 1,
        "transactions": 20,
        "transaction_timeout_ms": 10_000,
        "committed_groups": ("g2",),
        "dead_letter_groups": ("g1",),
        "deletes_records": True,
        "retains_little": False,
        "delivery_count_limit": 5,
        "lock_duration_ms": 3_000,
        "max_wait_ms": 500,
        "fault_seconds": 4.0,
        "fault_count": 0,
    }
    return Plan(**(values | changes))


def check(outcome: Outcome) -> None:
    assert not outcome.failed, outcome.report()
