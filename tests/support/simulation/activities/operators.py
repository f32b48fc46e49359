"""What operators of a cluster do while it works: they move topic partitions, add, remove and upgrade nodes.

`Operator` calls the coordinators as `kshare partitions` and `kshare state` do. Its orders hold whatever fails: a move
ends complete or undone, a node that was drained has nothing that anyone needs, and after both each leader has the rows
of the partitions that it leads and of no others (`check_rows`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from kshare_core.errors import ErrorCode, StorageFailure
from kshare_core.identifiers import TopicPartition
from kshare_leader.log import keys
from kshare_leader.node import LeaderNode
from kshare_leader.reassignment.rows import MARK
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import (
    DESCRIBE_PARTITIONS,
    DESCRIBE_STATE_PARTITIONS,
    DRAIN_LEADER,
    DRAIN_SHARE_COORDINATOR,
    MOVE_PARTITIONS,
)
from kshare_rpc.network import CallFailed, Method
from kshare_runtime.ports import KeyValueStore
from support.simulation.activities.older_versions import with_older_rows
from support.simulation.cluster import EMBEDDED, OPERATOR, RPC_PORT, Cluster
from support.simulation.history import FaultEvent
from support.simulation.loop import Incarnation
from support.simulation.network import SimulatedNetwork

CALL_TIMEOUT_MS = 2_000
POLL_S = 0.2
SETTLED_WITHIN_S = 60.0
MOVED_PROBABILITY = 0.7
CANCEL_PROBABILITY = 0.2
UPGRADED_ROLES = ("share-coordinator", "leader")
FURTHER_UPGRADED_ROLES = ("coordinator", "gateway")
"""With `plan.UPGRADES_OF_ALL_ROLES`."""
OLDER_PROBABILITY = 0.7
SCALED_ROLES = ("share-coordinator", "leader", "gateway")
MOST_OF_A_ROLE = 4
REFUSALS_BEFORE_RESTARTS = 20
"""Of draining a node, or answers while nobody can take anything, a second apart: more than restarts and leases take."""


class Operator:
    """See the module's text."""

    def __init__(self, cluster: Cluster, seed: object) -> None:
        self._cluster = cluster
        self._seed = seed
        self._network = SimulatedNetwork(cluster.fabric, Incarnation(OPERATOR, 1))

    def _note(self, name: str, hosts: Sequence[str], text: str = "") -> None:
        self._cluster.history.add(FaultEvent(self._cluster.loop.time(), name, tuple(hosts), text))

    async def call(self, method: Method[Any, Any], request: Any) -> Any:
        """The answer of the active coordinator; None where none says that it is the active one."""
        for name in [name for name in self._cluster.hosts if name.startswith("coordinator-")]:
            channel = self._network.connect(f"{name}:{RPC_PORT}")
            try:
                answer, _ = await channel.call(method, request, timeout_ms=CALL_TIMEOUT_MS)
            except CallFailed:
                continue
            if answer.error_code != ErrorCode.NOT_COORDINATOR:
                return answer
        return None

    # Moves

    async def move_at_random(self) -> None:
        """Until it is cancelled: partitions of all topics get another leader, or a move of theirs is called off."""
        draw = random.Random(f"{self._seed}/moves")
        while True:
            await asyncio.sleep(draw.choice((0.05, 0.5, 3.0)) * draw.random())
            topics = await self.topics() or []
            named = [(topic.name, partition.partition) for topic in topics for partition in topic.partitions]
            leader = draw.choice([name for name in self._cluster.hosts if name.startswith("leader-")])
            self._note("moves", (leader,))
            chosen = [name for name in named if draw.random() < MOVED_PROBABILITY]
            await self.move(chosen, number_of(leader), cancel=draw.random() < CANCEL_PROBABILITY)

    async def move(self, partitions: Sequence[tuple[str, int]], to: int, *, cancel: bool = False) -> None:
        named = [pb.NamedPartitions(topic_name=topic, partitions=[partition]) for topic, partition in partitions]
        await self.call(MOVE_PARTITIONS, pb.MovePartitionsRequest(topics=named, to_node_id=to, cancel=cancel))

    async def topics(self) -> list[pb.Topic] | None:
        """None while no coordinator is active."""
        answer = await self.call(DESCRIBE_PARTITIONS, pb.DescribePartitionsRequest())
        return None if answer is None or answer.error_code else list(answer.topics)

    async def settled(self) -> list[pb.Topic]:
        """All topics when nothing moves any more."""
        deadline = self._cluster.loop.time() + SETTLED_WITHIN_S
        while True:
            topics = await self.topics()
            if topics and not any(partition.is_moving for topic in topics for partition in topic.partitions):
                return topics
            if self._cluster.loop.time() >= deadline:
                raise AssertionError(f"after {SETTLED_WITHIN_S} s something still moves: {topics}")
            await asyncio.sleep(POLL_S)

    async def check_rows(self) -> None:
        """Each leader has the rows of the partitions that it leads, and of no others; no mark is left."""
        deadline = self._cluster.loop.time() + SETTLED_WITHIN_S
        while problem := self._misplaced(await self.settled()):
            if self._cluster.loop.time() >= deadline:
                raise AssertionError(f"after {SETTLED_WITHIN_S} s {problem}")
            await asyncio.sleep(POLL_S)

    def _misplaced(self, topics: Sequence[pb.Topic]) -> str | None:
        for name, host in self._cluster.hosts.items():
            if not name.startswith("leader-"):
                continue
            node = host.node
            store = node._engine.store if isinstance(node, LeaderNode) and node._engine is not None else None
            if store is None:
                return f"{name} is not up"
            try:
                # As code of the host: a read may begin the sync of a batch that is on its way to the store.
                problem = host.by_its_clock(partial(_misplaced_in, store, number_of(name), topics))
            except StorageFailure as failure:
                problem = f"cannot be read: {failure}"
            if problem is not None:
                return f"{name} {problem}"
        return None

    # Nodes that come and go

    async def scale(self, seconds: float) -> None:
        """Nodes join and leave for good until `seconds` have passed; a node that is being drained is drained first."""
        draw = random.Random(f"{self._seed}/scaling")
        end = self._cluster.loop.time() + seconds
        while self._cluster.loop.time() < end:
            await asyncio.sleep(draw.choice((1.0, 5.0)) * (0.5 + draw.random()))
            role = draw.choice(SCALED_ROLES)
            there = [name for name in self._cluster.hosts if name.rpartition("-")[0] == role]
            if len(there) <= 1 or (len(there) < MOST_OF_A_ROLE and draw.random() < 0.5):  # the only one may be lost
                host = await self._cluster.add_host(role)
                self._note("join", (host.name,))
            else:
                await self._remove(draw.choice(there))

    async def _remove(self, name: str) -> None:
        self._note("leave", (name,))
        host = self._cluster.hosts[name]
        self._cluster.leaving[name] = None
        lives = 0
        # A fault may have killed it while it stopped, and started it: then it has registered, and took part again, also
        # where another fault has killed it since. Or a fault has lost it for good.
        while name in self._cluster.hosts and (host.running or host.lives != lives):
            lives = await self._drain(name)
            await host.stop()
            if await self._has_got_a_topic(name) and name in self._cluster.hosts and not host.running:
                host.start()
        if name in self._cluster.hosts:
            self._cluster.remove_host(name)
        self._note("left", (name,))

    async def _drain(self, name: str) -> int:
        """Returns when the node has no partition left, with the number of the life in which that was so.

        With the kafka engine, nothing is on a node that does not run.
        """
        host, refusals = self._cluster.hosts[name], 0
        while True:
            lives = host.lives
            if not (host.running or self._cluster.shape.engine == EMBEDDED):
                return lives
            if (left := await self._drained(name)) == 0:
                return lives
            self._note("drained", (name,), f"{left} left")
            await asyncio.sleep(1.0)
            refusals = refusals + 1 if left is None or await self._is_nobody_left_to_take(name) else 0
            if refusals == REFUSALS_BEFORE_RESTARTS:
                refusals = 0
                await self._restart_others(name)

    async def _has_got_a_topic(self, name: str) -> bool:
        """Whether a topic was placed on a drained leader until its lease ended, as no other leader was live then."""
        if name.rpartition("-")[0] != "leader" or self._cluster.shape.engine != EMBEDDED:
            return False
        await asyncio.sleep(self._cluster.configs.integer("kshare.node.lease.ms") / 1000)
        while (topics := await self.topics()) is None:
            await asyncio.sleep(POLL_S)
        return any(partition.leader_node_id == number_of(name) for topic in topics for partition in topic.partitions)

    async def _is_nobody_left_to_take(self, name: str) -> bool:
        """Whether the others are draining too: a share coordinator whose disk failed asks for it when it likes."""
        if name.rpartition("-")[0] != "share-coordinator":
            return False
        answer = await self.call(DESCRIBE_STATE_PARTITIONS, pb.DescribeStatePartitionsRequest())
        if answer is None or answer.error_code:
            return False
        return all(node.is_draining for node in answer.share_coordinators if node.is_live)

    async def _restart_others(self, name: str) -> None:
        """A node whose disk failed has asked to be drained, and takes nothing until it was restarted: it may be the
        only other one, or have become it since the drain began."""
        for other, host in list(self._cluster.hosts.items()):
            if other != name and other.rpartition("-")[0] == name.rpartition("-")[0]:
                self._note("restart", (other,))
                await host.stop()
                if not host.running and other in self._cluster.hosts:
                    host.start()

    async def _drained(self, name: str) -> int | None:
        """How many partitions the node still has; None where that is not known."""
        number, role = number_of(name), name.rpartition("-")[0]
        if role == "leader":
            answer = await self.call(DRAIN_LEADER, pb.DrainLeaderRequest(node_id=number))
            return None if answer is None or answer.error_code else int(answer.partitions_left)
        if role == "share-coordinator":
            answer = await self.call(DRAIN_SHARE_COORDINATOR, pb.DrainShareCoordinatorRequest(node_id=number))
            return None if answer is None or answer.error_code else int(answer.state_partitions_left)
        return 0

    # Upgrades

    def choose_older_nodes(self, *, of_all_roles: bool) -> None:
        """Some nodes begin with an older version, others with the present one; see `older_versions`."""
        draw, further = random.Random(f"{self._seed}/upgrades"), random.Random(f"{self._seed}/further upgrades")
        for name in self._cluster.hosts:
            role = name.rpartition("-")[0]
            if role in UPGRADED_ROLES:
                is_older = draw.random() < OLDER_PROBABILITY
            else:
                is_older = of_all_roles and role in FURTHER_UPGRADED_ROLES and further.random() < OLDER_PROBABILITY
            if is_older:
                self._cluster.older[name] = None

    async def upgrade_all(self, seconds: float) -> None:
        """Each node of the older version is stopped, and started with the present one, within `seconds`."""
        draw = random.Random(f"{self._seed}/upgrading")
        names = list(self._cluster.older)
        for name in names:
            await asyncio.sleep(seconds / len(names) * draw.random())
            host = self._cluster.hosts.get(name)
            del self._cluster.older[name]
            if host is None:
                continue
            self._note("upgrade", (name,))
            await host.stop()
            if not host.running and name in self._cluster.hosts:  # it may have left meanwhile
                host.disk.put_back(with_older_rows(host.disk.copy()))  # which has nothing where the host has no disk
                host.disk_conditions.has_older_rows = not name.startswith("share-coordinator")
                host.start()


def _misplaced_in(store: KeyValueStore, node_id: int, topics: Sequence[pb.Topic]) -> str | None:
    """What the store of a leader has and should not have. StorageFailure."""
    if (mark := next(store.scan(keys.META, MARK, MARK + b"\xff"), None)) is not None:
        return f"has the mark {mark!r}"
    for topic in topics:
        for partition in topic.partitions:
            prefix = keys.partition_prefix(TopicPartition(topic.topic_id, partition.partition))
            found = [
                family
                for family in keys.PARTITION_FAMILIES
                if next(store.scan(family, prefix, keys.after_prefix(prefix)), None) is not None
            ]
            if found and partition.leader_node_id != node_id:
                return f"has rows of {topic.name}:{partition.partition} in {found}"
    return None


def number_of(host: str) -> int:
    """Its node id."""
    return int(host.rpartition("-")[2])
