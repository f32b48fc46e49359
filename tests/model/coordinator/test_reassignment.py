"""The catalog's moves of topic partitions against a naive model: leaders come, go, and are emptied; moves advance.

The model keeps a few values for each partition, and applies the rules as they are told in the machine's text. It does
not say where a partition goes whose leader is chosen by load, only that the choice is allowed.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kshare_core.errors import KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver
from support.coordinator.reassignment_commands import advance, cancel, drain, expire, move, partition_view

LEADERS = (1, 2, 3)
TOPICS = {"a": 3, "b": 2}
STEPS = pb.AdvancePartitionMoveRequest
leaders = st.sampled_from(LEADERS)
named = st.sampled_from([(topic, number) for topic, count in TOPICS.items() for number in range(count)])


class Partition:
    """What the model knows of one."""

    def __init__(self, leader: int) -> None:
        self.leader = leader
        self.target: int | None = None
        self.move_epoch = 0
        self.is_fenced = False
        self.highest_epoch = 0

    def stay(self) -> None:
        self.target, self.is_fenced = None, False


class Moves(RuleBasedStateMachine):
    @initialize(live=st.sets(leaders, min_size=1))
    def start(self, live: set[int]) -> None:
        self.driver = CoordinatorDriver()
        self.live: dict[int, str] = {}
        self.draining: dict[int, None] = {}
        self.incarnations = 0
        for node_id in sorted(live):
            self._register(node_id)
        for topic, count in TOPICS.items():
            self.driver.create_topic(topic, count)
        self.partitions = {
            (topic, number): Partition(partition_view(self.driver, topic, number).leader_node_id)
            for topic, count in TOPICS.items()
            for number in range(count)
        }

    def _register(self, node_id: int) -> None:
        self.incarnations += 1
        self.live[node_id] = str(self.incarnations)
        self.driver.register(pb.ROLE_LEADER, node_id, self.live[node_id])

    def _settle(self) -> None:
        """What every change of leaders ends with."""
        takers = [node_id for node_id in self.live if node_id not in self.draining]
        for name, partition in self.partitions.items():
            if partition.target is not None and partition.target not in takers:
                partition.stay()
            if (
                takers
                and partition.target is None
                and partition.leader in self.draining
                and partition.leader in self.live
            ):
                view = partition_view(self.driver, *name)
                assert view.is_moving and view.moving_to_node_id in takers, "a leader that shall be empty is emptied"
                self._begun(name)

    def _begun(self, name: tuple[str, int]) -> None:
        view = partition_view(self.driver, *name)
        partition = self.partitions[name]
        partition.target, partition.move_epoch, partition.is_fenced = view.moving_to_node_id, view.move_epoch, False

    @rule(node_id=leaders)
    def register(self, node_id: int) -> None:
        self._register(node_id)
        self.draining.pop(node_id, None)
        self._settle()

    @rule(node_id=leaders)
    def lose(self, node_id: int) -> None:
        if node_id not in self.live:
            expire(self.driver, node_id, "never")  # changes nothing
            return
        expire(self.driver, node_id, self.live.pop(node_id))
        self._settle()

    @rule(name=named, to=leaders)
    def move(self, name: tuple[str, int], to: int) -> None:
        partition = self.partitions[name]
        if to not in self.live or to in self.draining:
            self._is_refused(lambda: move(self.driver, name[0], [name[1]], to))
            return
        code = move(self.driver, name[0], [name[1]], to).results[0].error_code
        if partition.target is not None:
            assert (code == 0) is (partition.target == to)
        elif partition.leader == to:
            assert code == 0
        elif partition.leader not in self.live:
            assert code != 0
        else:
            assert code == 0
            self._begun(name)
            assert partition.target == to

    @rule(name=named)
    def cancel(self, name: tuple[str, int]) -> None:
        partition = self.partitions[name]
        code = cancel(self.driver, name[0], [name[1]]).results[0].error_code
        assert (code == 0) is (partition.target is not None)
        partition.stay()

    @rule(
        name=named,
        step=st.sampled_from([STEPS.FENCE, STEPS.COMPLETE, STEPS.GIVE_UP]),
        who=st.sampled_from(["target", "another"]),
        epoch=st.sampled_from([0, 0, 0, -1, 1]),
    )
    def advance(self, name: tuple[str, int], step: Any, who: str, epoch: int) -> None:
        partition = self.partitions[name]
        node_id = partition.target if who == "target" and partition.target is not None else 9
        asked_epoch = partition.move_epoch + epoch
        is_the_move = partition.target == node_id and epoch == 0
        if not is_the_move or (step == STEPS.COMPLETE and not partition.is_fenced):
            self._is_refused(lambda: advance(self.driver, *name, node_id, asked_epoch, step))
            return
        advance(self.driver, *name, node_id, asked_epoch, step)
        if step == STEPS.FENCE:
            partition.is_fenced = True
            return
        if step == STEPS.COMPLETE:
            partition.leader = node_id
            advance(self.driver, *name, node_id, asked_epoch, step)  # said again
        partition.stay()

    @rule(node_id=leaders, undo=st.booleans())
    def drain(self, node_id: int, undo: bool) -> None:
        has = sum(partition.leader == node_id for partition in self.partitions.values())
        others = [other for other in self.live if other != node_id and other not in self.draining]
        if undo:
            assert drain(self.driver, node_id, undo=True) == has
            if node_id in self.draining:
                del self.draining[node_id]
                for partition in self.partitions.values():
                    if partition.leader == node_id:
                        partition.stay()
                self._settle()
        elif node_id in self.live and (others or not has):
            assert drain(self.driver, node_id) == has
            self.draining[node_id] = None
            self._settle()
        else:
            self._is_refused(lambda: drain(self.driver, node_id))

    def _is_refused(self, ask: Any) -> None:
        version = self.driver.state.version
        try:
            ask()
        except KafkaError:
            assert self.driver.state.version == version
            return
        raise AssertionError("it should have been refused")

    @invariant()
    def the_catalog_is_what_the_model_says(self) -> None:
        for name, partition in self.partitions.items():
            view = partition_view(self.driver, *name)
            assert view.leader_node_id == partition.leader, name
            assert (view.moving_to_node_id if view.is_moving else None) == partition.target, name
            assert view.is_fenced == partition.is_fenced, name
            assert not view.is_moving or view.move_epoch == partition.move_epoch
            assert view.leader_epoch >= partition.highest_epoch, "leader epochs never fall"
            assert not view.is_moving or view.move_epoch >= view.placement_epoch
            assert view.is_moving or view.placement_epoch > partition.move_epoch, "copies are older"
            partition.highest_epoch = view.leader_epoch

    @invariant()
    def counts_are_right(self) -> None:
        state = self.driver.state
        assert state.moving_partitions == sum(one.target is not None for one in self.partitions.values())
        placed = [one.leader for one in self.partitions.values()]
        assert state.partitions_placed == {node_id: placed.count(node_id) for node_id in set(placed)}

    @invariant()
    def it_comes_back_from_its_rows(self) -> None:
        assert self.driver.load().state == self.driver.state


TestPartitionMoves = Moves.TestCase
TestPartitionMoves.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
