"""The simulated cluster: its topics, its brokers, and the controller that fences brokers and elects leaders.

What brokers store outlives them: it is kept here, and a broker that crashed has it again. A broker that the controller
has not heard of for `SESSION_TIMEOUT_S` is fenced; its partitions get a leader among the replicas in sync, or have none
until the last one is back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kshare_upstream.port import NO_LEADER
from kshare_upstream.port import UpstreamPartitionName as Name
from support.simulation.hosts import EPOCH_MS, SimulatedHost
from support.simulation.network import SimulatedFabric, in_no_host
from support.simulation.upstream.partitions import Replicas, SimulatedPartition
from support.simulation.upstream.transactions import TransactionCoordinator

BROKER_PORT = 9092
TICK_S = 0.25
SESSION_TIMEOUT_S = 3.0
"""After so long without a heartbeat a broker is fenced (broker.session.timeout.ms)."""
METADATA_LAG_S = 0.3
"""So much later at most the brokers know of new topics and leaders."""
REPLICAS = 3
ELECTION_LIMIT_S = 1.0
"""So long at most a partition has no leader although one could be elected."""
PROTECTED = "unclean.leader.election.enable"


@dataclass(slots=True)
class SimulatedTopic:
    """A topic of the simulated cluster."""

    name: str
    topic_id: bytes
    configs: dict[str, str]
    partitions: list[SimulatedPartition]
    known_at: float
    """From then on the brokers know of it."""

    @property
    def min_in_sync(self) -> int:
        return int(self.configs.get("min.insync.replicas", "1"))


@dataclass(slots=True)
class _BrokerState:
    host: SimulatedHost
    is_started: bool = False
    is_fenced: bool = True
    heard_at: float = -SESSION_TIMEOUT_S


class SimulatedUpstream:
    """See the module's text. `brokers` gets its hosts by `add_broker`."""

    def __init__(self, fabric: SimulatedFabric, draw: random.Random) -> None:
        self.fabric = fabric
        self.loop = fabric.loop
        self.draw = draw
        self.topics: dict[str, SimulatedTopic] = {}
        self.broker_configs: dict[str, str] = {"min.insync.replicas": "1", PROTECTED: "false"}
        self.transactions = TransactionCoordinator(self.loop, self.partition, self.now_ms)
        self._brokers: dict[int, _BrokerState] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def now_ms(self) -> int:
        return EPOCH_MS + int(self.loop.now_s * 1000)

    # Brokers

    def add_broker(self, node_id: int, host: SimulatedHost) -> None:
        self._brokers[node_id] = _BrokerState(host)

    @property
    def addresses(self) -> Mapping[int, tuple[str, int]]:
        """Of the brokers that are not fenced."""
        return {
            node_id: (broker.host.name, BROKER_PORT)
            for node_id, broker in self._brokers.items()
            if not broker.is_fenced
        }

    @property
    def bootstrap(self) -> Sequence[str]:
        return [f"{broker.host.name}:{BROKER_PORT}" for broker in self._brokers.values()]

    @property
    def controller_id(self) -> int:
        """Any living broker stands for the controller, as with KRaft."""
        return min(self.addresses, default=-1)

    def broker_started(self, node_id: int) -> None:
        """Also a broker that is back before its session ended begins anew: it led nothing meanwhile."""
        broker = self._brokers[node_id]
        if not broker.is_fenced:
            self._fence(node_id, is_orderly=False)
        broker.is_started, broker.heard_at = True, self.loop.now_s
        broker.is_fenced = False

    def broker_stops(self, node_id: int) -> None:
        """A controlled shutdown: its partitions move first, and nothing is lost."""
        self._brokers[node_id].is_started = False
        self._fence(node_id, is_orderly=True)

    def is_running(self, node_id: int) -> bool:
        broker = self._brokers[node_id]
        incarnation = broker.host.incarnation
        return broker.is_started and incarnation is not None and not incarnation.stopped

    def can_replicate(self, leader: int, follower: int) -> bool:
        names = self._brokers[leader].host.name, self._brokers[follower].host.name
        blocked = self.fabric.is_blocked(*names) or self.fabric.is_blocked(*reversed(names))
        return self.is_running(leader) and self.is_running(follower) and not blocked

    def _replication_delay_s(self, leader: int, follower: int) -> float:
        names = self._brokers[leader].host.name, self._brokers[follower].host.name
        return self.fabric.delay(*names) + self.fabric.delay(*reversed(names))

    # The controller

    def start(self) -> None:
        """Starts the controller, which is on no host."""
        self._tasks = [
            self.loop.create_task(self._control(), name="upstream controller"),
            self.loop.create_task(self.transactions.write_markers(), name="upstream markers"),
        ]

    async def _control(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now = self.loop.now_s
            for node_id, broker in self._brokers.items():
                if broker.host.incarnation is None:
                    broker.is_started = False
                if self.is_running(node_id) and self._reaches_a_quorum(node_id):
                    broker.heard_at, broker.is_fenced = now, False
                elif not broker.is_fenced and now - broker.heard_at > SESSION_TIMEOUT_S:
                    self._fence(node_id, is_orderly=False)
            for partition in self.all_partitions():
                if partition.leader == NO_LEADER:
                    self._elect(partition)
                elif self._reaches_a_quorum(partition.leader):
                    partition.tick(lambda node_id: not self._brokers[node_id].is_fenced)
            self._apply_retention()
            self.transactions.tick()

    def _reaches_a_quorum(self, node_id: int) -> bool:
        name = self._brokers[node_id].host.name
        others = [broker.host.name for other, broker in self._brokers.items() if other != node_id]
        reached = sum(
            not self.fabric.is_blocked(name, other) and not self.fabric.is_blocked(other, name) for other in others
        )
        return 2 * (reached + 1) > len(self._brokers)

    def _fence(self, node_id: int, *, is_orderly: bool) -> None:
        self._brokers[node_id].is_fenced = True
        self.fabric.note(f"broker {node_id} is fenced")
        for partition in self.all_partitions():
            if len(partition.in_sync) > 1 and node_id in partition.in_sync:
                partition.in_sync.remove(node_id)
            if partition.leader == node_id:
                partition.lose_leader()
                if is_orderly:
                    self._elect(partition, is_orderly=True)
                else:
                    delay_s = self.draw.random() * ELECTION_LIMIT_S
                    in_no_host(self.loop, self.loop.now_s + delay_s, self._elect, partition)

    def _elect(self, partition: SimulatedPartition, *, is_orderly: bool = False) -> None:
        candidates = [each for each in partition.in_sync if not self._brokers[each].is_fenced]
        if candidates and partition.leader == NO_LEADER:
            partition.elect(candidates[0], is_orderly=is_orderly)
            self.fabric.note(
                f"broker {partition.leader} leads {partition.at} in epoch {partition.leader_epoch} "
                f"from offset {partition.log.end}"
            )

    def elect_uncleanly(self, at: Name, end_offset: int) -> None:
        """A replica that has the log up to `end_offset` only leads the partition: acknowledged records are lost."""
        partition = self.partition(at)
        assert partition is not None, f"there is no partition {at}"
        living = [each for each in partition.replica_ids if not self._brokers[each].is_fenced]
        others = [each for each in living if each != partition.leader] or living
        lost = partition.log.end - end_offset
        partition.elect_uncleanly(self.draw.choice(others), end_offset)
        self.fabric.note(f"unclean election of {at}: {lost} offsets are lost, the log ends at {partition.log.end}")

    def _apply_retention(self) -> None:
        """Deletes the oldest batches of topics with retention.bytes, of what is replicated."""
        for topic in self.topics.values():
            limit = int(topic.configs.get("retention.bytes", "-1"))
            for partition in topic.partitions if limit >= 0 else ():
                log, excess = partition.log, partition.log.size_bytes() - limit
                for batch in list(log.batches):
                    if excess <= 0 or batch.next_offset > partition.high_watermark:
                        break
                    excess -= len(batch.data)
                    log.delete_before(batch.next_offset)

    # Topics

    def all_partitions(self) -> Iterator[SimulatedPartition]:
        for topic in self.topics.values():
            yield from topic.partitions

    def partition(self, at: Name) -> SimulatedPartition | None:
        topic = self.topics.get(at.topic)
        return topic.partitions[at.partition] if topic and 0 <= at.partition < len(topic.partitions) else None

    def topic_of_id(self, topic_id: bytes) -> SimulatedTopic | None:
        return next((topic for topic in self.topics.values() if topic.topic_id == topic_id), None)

    def create_topic(
        self, name: str, partition_count: int, replicas: int, configs: Mapping[str, str]
    ) -> SimulatedTopic:
        topic = SimulatedTopic(name, self.draw.randbytes(16), dict(configs), [], self._known_at())
        self.topics[name] = topic
        self.add_partitions(topic, partition_count, replicas)
        return topic

    def add_partitions(self, topic: SimulatedTopic, count: int, replicas: int) -> None:
        """Grows the topic to `count` partitions."""
        living = sorted(self.addresses)
        for index in range(len(topic.partitions), count):
            first = self.draw.randrange(len(living))
            replica_ids = [living[(first + each) % len(living)] for each in range(min(replicas, len(living)))]
            at = Name(topic.name, index)
            brokers = Replicas(self.can_replicate, self._replication_delay_s)
            topic.partitions.append(SimulatedPartition(self.loop, at, replica_ids, brokers, self.draw))

    def delete_topic(self, name: str) -> None:
        for partition in self.topics.pop(name).partitions:
            partition.lose_leader()

    def _known_at(self) -> float:
        return self.loop.now_s + self.draw.random() * METADATA_LAG_S

    def known_leader(self, partition: SimulatedPartition) -> int:
        """The leader as Metadata shows it: for a moment after an election, still the one before."""
        if self.loop.now_s < partition.elected_at + METADATA_LAG_S and partition.former_leader in self.addresses:
            return partition.former_leader
        return partition.leader if partition.leader in self.addresses else NO_LEADER
