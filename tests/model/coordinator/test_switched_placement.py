"""Placement in the kafka engine under any order of nodes that come, go, drain and get partitions moved to them.

After every step: nothing is under way; what is served is served by live nodes, and not by draining ones where there are
others; leader epochs and owner epochs never fall, and grow with every change; each node has its share, unless an
administrator moved partitions since a node last came or went; and the rows tell the same.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.commands import MirroredTopic
from kshare_core.errors import KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver
from support.coordinator.reassignment_commands import drain, move

KAFKA = {"kshare.engine": "kafka", "kshare.upstream.bootstrap.servers": "broker:9092"}
LEADER, SHARE_COORDINATOR = pb.ROLE_LEADER, pb.ROLE_SHARE_COORDINATOR
NODE_IDS = (1, 2, 3, 4)
TOPICS = ("a", "b", "c")
node_ids = st.sampled_from(NODE_IDS)
roles = st.sampled_from([LEADER, SHARE_COORDINATOR])
Served = dict[object, tuple[int, int]]
"""Node id and epoch by topic partition or state partition."""


class Placements(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.driver = CoordinatorDriver(KAFKA, state_partitions=7)
        self.live: dict[int, dict[int, str]] = {LEADER: {}, SHARE_COORDINATOR: {}}
        self.draining: dict[int, dict[int, None]] = {LEADER: {}, SHARE_COORDINATOR: {}}
        self.incarnations = 0
        self.is_moved = False
        self.before: dict[int, Served] = {LEADER: {}, SHARE_COORDINATOR: {}}

    @rule(role=roles, node_id=node_ids)
    def register(self, role: pb.Role.ValueType, node_id: int) -> None:
        self.incarnations += 1
        self.live[role][node_id] = str(self.incarnations)
        self.draining[role].pop(node_id, None)
        self.driver.register(role, node_id, str(self.incarnations))
        self.is_moved &= role != LEADER

    @rule(role=roles, node_id=node_ids)
    def expire(self, role: pb.Role.ValueType, node_id: int) -> None:
        incarnation = self.live[role].pop(node_id, None)
        if incarnation is not None:
            self.driver.run(commands.ExpireNode(role=role, node_id=node_id, incarnation=incarnation))
            self.is_moved &= role != LEADER

    @rule(node_id=node_ids, role=roles, undo=st.booleans())
    def drain(self, role: pb.Role.ValueType, node_id: int, undo: bool) -> None:
        try:
            if role == LEADER:
                drain(self.driver, node_id, undo=undo)
            else:
                request = pb.DrainShareCoordinatorRequest(node_id=node_id, undo=undo)
                self.driver.run(commands.DrainShareCoordinator(request=request))
        except KafkaError:
            assert not undo
            return
        was = node_id in self.draining[role]
        if undo:
            self.draining[role].pop(node_id, None)
        else:
            self.draining[role][node_id] = None
        self.is_moved &= role != LEADER or was != undo

    @rule(name=st.sampled_from(TOPICS), count=st.integers(1, 6))
    def mirror(self, name: str, count: int) -> None:
        topic = MirroredTopic(name=name, topic_id=name.encode() * 16, partition_count=count)
        self.driver.run(commands.MirrorTopics(cluster_id="c", topics=(topic,)))

    @rule(name=st.sampled_from(TOPICS))
    def remove(self, name: str) -> None:
        self.driver.run(commands.MirrorTopics(cluster_id="c", gone=(name,)))
        self.before[LEADER] = {key: value for key, value in self.before[LEADER].items() if key[0] != name}  # type: ignore[index]
        self.is_moved = True  # what is left may be uneven until a node comes or goes

    @rule(name=st.sampled_from(TOPICS), partition=st.integers(0, 5), node_id=node_ids)
    def move(self, name: str, partition: int, node_id: int) -> None:
        try:
            move(self.driver, name, [partition], node_id)
        except KafkaError:
            return
        self.is_moved = True

    @invariant()
    def served_by_live_nodes(self) -> None:
        for role, served in ((LEADER, self._partitions()), (SHARE_COORDINATOR, self._state_partitions())):
            live = self.live[role]
            takers = {node_id for node_id in live if node_id not in self.draining[role]} or set(live)
            nodes = [node_id for node_id, _ in served.values()]
            if takers:
                assert set(nodes) <= (set(live) if self.is_moved else takers), "what is gone serves nothing"
                counts = [nodes.count(node_id) for node_id in takers]
                assert max(counts) - min(counts) <= 1 or (role == LEADER and self.is_moved)
            for key, (node_id, epoch) in served.items():
                was_node, was_epoch = self.before[role].get(key, (node_id, epoch))
                assert epoch >= was_epoch and (node_id == was_node or epoch > was_epoch)
            self.before[role] = served

    @invariant()
    def nothing_is_under_way(self) -> None:
        assert self.driver.state.moving_partitions == 0
        assert not any(owner.is_moving for owner in self.driver.state.state_partitions.values())
        assert self.driver.load().state == self.driver.state

    def _partitions(self) -> Served:
        state = self.driver.state
        return {
            (topic.name, placement.partition): (placement.leader_node_id, state.leader_epoch(placement))
            for topic in state.topics.values()
            for placement in topic.placements
        }

    def _state_partitions(self) -> Served:
        owners = self.driver.state.state_partitions
        return {number: (owner.node_id, owner.owner_epoch) for number, owner in owners.items()}


TestPlacements = Placements.TestCase
TestPlacements.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
