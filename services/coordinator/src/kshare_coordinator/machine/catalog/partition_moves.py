"""Reassignment of topic partitions to other leaders, and draining of leaders.

In the embedded engine the rows of a partition are on its leader's disk, so it moves by copy, fence and switch:
1. The catalog records the move, with a move epoch. The leader continues to serve; the new leader copies the log.
2. When little is left, the new leader asks for the fence. The former leader stops serving the partition once it sees
   the fence, and only then hands out the remaining rows.
3. The new leader reports that it has all rows durably. The catalog makes it the leader, with a new placement epoch, so
   that the leader epoch grows. The former leader removes its rows.
Until step 3 the rows of the former leader are complete, whichever step fails. After the fence no leader serves the
partition, so a move that cannot continue is cancelled. That is a new placement epoch too, so that every copy that was
begun is older than the placement.

A move is part of its partition's placement, so it ends with its topic. Every change of leaders ends with `settle`:
partitions without a leader are placed, moves to expired or draining leaders are cancelled, and partitions of draining
leaders move to the live leader that will have the fewest. Partitions of an expired leader stay, because their rows are
on its disk.

In the kafka engine no rows move, so every move is a switch: the catalog records the new leader at once, with a new
placement epoch. `spread` does that whenever a leader comes, goes or drains; it may undo what an administrator moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kshare_coordinator.machine import records
from kshare_coordinator.machine.catalog.engine import Engine
from kshare_coordinator.machine.catalog.placement import (
    NO_LEADER,
    LeastLoaded,
    Placement,
    draining_leaders,
    is_spread,
    spread,
    takers,
)
from kshare_coordinator.machine.commands import (
    AdvancePartitionMove,
    CatalogChanged,
    DrainLeader,
    Effect,
    MovePartitions,
)
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.errors import ErrorCode, KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb
from kshare_runtime.machine import Decision

NO_INCARNATION = "-"
PARTITIONS_LIMIT = 10_000
"""Partitions of one request; more get INVALID_REQUEST."""

Step = pb.AdvancePartitionMoveRequest
MoveResult = pb.MovePartitionsResponse.Result


class PlacementDraft:
    """The topics as they will be; a topic is copied when its first partition changes."""

    def __init__(self, state: CoordinatorState, epoch: int) -> None:
        self._state = state
        self._epoch = epoch
        self._changed: dict[bytes, records_pb.TopicRecord] = {}

    def topics(self) -> list[records_pb.TopicRecord]:
        return [self._changed.get(topic_id, topic) for topic_id, topic in sorted(self._state.topics.items())]

    def placement(self, topic_id: bytes, partition: int) -> Placement | None:
        """As it is in the draft; not to be changed."""
        topic = self._changed.get(topic_id) or self._state.topics.get(topic_id)
        if topic is None or not 0 <= partition < len(topic.placements):
            return None
        return topic.placements[partition]

    def _change(self, topic_id: bytes, partition: int) -> Placement:
        topic = self._changed.get(topic_id)
        if topic is None:
            topic = self._changed[topic_id] = records_pb.TopicRecord()
            topic.CopyFrom(self._state.topics[topic_id])
        return topic.placements[partition]

    def place(self, topic_id: bytes, partition: int, node_id: int) -> None:
        """The node leads it, and nothing moves; also for a node that leads it already."""
        placement = self._change(topic_id, partition)
        placement.CopyFrom(
            Placement(
                partition=partition,
                leader_node_id=node_id,
                placement_epoch=self._epoch,
                given_up_epoch=placement.given_up_epoch,
            )
        )

    def move(self, topic_id: bytes, partition: int, node_id: int) -> None:
        placement = self._change(topic_id, partition)
        placement.is_moving, placement.moving_to_node_id = True, node_id
        placement.move_epoch, placement.is_fenced = self._epoch, False

    def replace_lost_leader(self, node_id: int, live: Sequence[int], draining: Sequence[int]) -> None:
        """All partitions of a leader that is given up go to live ones, which begin them with an empty log."""
        leaders = LeastLoaded(takers(live, draining), self._loads())
        for topic in self.topics():
            for placement in list(topic.placements):
                if placement.leader_node_id == node_id:
                    self.place(topic.topic_id, placement.partition, _taken(leaders))
                    self._change(topic.topic_id, placement.partition).given_up_epoch = self._epoch

    def fence(self, topic_id: bytes, partition: int) -> None:
        self._change(topic_id, partition).is_fenced = True

    def records(self) -> list[Record]:
        """The changed topics."""
        return [records.topic(topic) for _, topic in sorted(self._changed.items())]

    def settle(self, live: Sequence[int], draining: Sequence[int]) -> None:
        """See the module docstring; `live` are the live leaders, `draining` the draining ones."""
        can_take = takers(live, draining)
        moves_to = [node_id for node_id in live if node_id not in draining]
        emptied = [node_id for node_id in live if node_id in draining] if moves_to else []
        for topic in self.topics():
            for placement in list(topic.placements):
                if placement.is_moving and placement.moving_to_node_id not in moves_to:
                    self.place(topic.topic_id, placement.partition, placement.leader_node_id)
        if not can_take:
            return
        leaders = LeastLoaded(can_take, self._loads())
        for topic in self.topics():
            for placement in list(topic.placements):
                if placement.leader_node_id == NO_LEADER:
                    self.place(topic.topic_id, placement.partition, _taken(leaders))
                elif placement.leader_node_id in emptied and not placement.is_moving:
                    self.move(topic.topic_id, placement.partition, _taken(leaders))

    def spread(self, live: Sequence[int], draining: Sequence[int]) -> None:
        """The leaders of the kafka engine; see the module docstring."""
        owners = {
            (topic.topic_id, placement.partition): placement.leader_node_id
            for topic in self.topics()
            for placement in topic.placements
        }
        for (topic_id, partition), node_id in spread(owners, takers(live, draining)).items():
            self.place(topic_id, partition, node_id)

    def _loads(self) -> dict[int, int]:
        """How many partitions each leader has once all moves are done."""
        loads: dict[int, int] = {}
        for topic in self.topics():
            for placement in topic.placements:
                node_id = placement.moving_to_node_id if placement.is_moving else placement.leader_node_id
                loads[node_id] = loads.get(node_id, 0) + 1
        return loads


def _taken(leaders: LeastLoaded) -> int:
    node_id = leaders.take()
    assert node_id is not None, "there are live leaders"
    return node_id


def _needs_settling(state: CoordinatorState, live: Sequence[int], draining: Sequence[int]) -> bool:
    """False where `settle` would change nothing, without a look at every partition of a large catalog."""
    if state.moving_partitions or state.partitions_placed.get(NO_LEADER):
        return True
    return any(state.partitions_placed.get(node_id) for node_id in draining if node_id in live)


def _settled(
    state: CoordinatorState, engine: Engine, live: Sequence[int], draining: Sequence[int], epoch: int
) -> list[Record]:
    draft = PlacementDraft(state, epoch)
    if not engine.data_is_local:
        if not is_spread(state.partitions_placed, takers(live, draining)):
            draft.spread(live, draining)
    elif _needs_settling(state, live, draining):
        draft.settle(live, draining)
    return draft.records()


def leader_registration_records(state: CoordinatorState, engine: Engine, node: pb.Node) -> list[Record]:
    """Handles a registered leader; a new process may have partitions again."""
    draining = draining_leaders(state)
    found: list[Record] = []
    name = f"{records.DRAINING_LEADER}{node.node_id}"
    if node.node_id in draining and state.texts[name] != node.incarnation:
        draining.remove(node.node_id)
        found.append(records.cluster_gone(name))
    live = sorted({*state.live_nodes(pb.ROLE_LEADER), node.node_id})
    return found + _settled(state, engine, live, draining, node.node_epoch)


def leader_expiry_records(state: CoordinatorState, engine: Engine, node_id: int) -> list[Record]:
    """Cancels moves to a leader whose lease ended; in the kafka engine others take over what it led."""
    live = [other for other in state.live_nodes(pb.ROLE_LEADER) if other != node_id]
    return _with_epoch(state, _settled(state, engine, live, draining_leaders(state), state.epoch_counter + 1))


def _with_epoch(state: CoordinatorState, found: list[Record]) -> list[Record]:
    if not found:
        return []
    return [records.cluster_number(records.EPOCH_COUNTER, state.epoch_counter + 1), *found]


def _finished(state: CoordinatorState, draft: PlacementDraft) -> list[Record]:
    """The draft's records with the catalog's epoch and version; nothing where nothing changes."""
    found = _with_epoch(state, draft.records())
    return [*found, records.cluster_number(records.CATALOG_VERSION, state.version + 1)] if found else []


# Moves by an administrator


@decides(MovePartitions)
def decide_move_partitions(
    state: CoordinatorState, command: MovePartitions, engine: Engine
) -> Decision[Record, pb.MovePartitionsResponse, Effect]:
    """Each partition of the request gets a result of its own; those that are right begin to move, or stay, together.

    KafkaError INVALID_REQUEST where the request as a whole cannot be done.
    """
    request = command.request
    count = sum(len(topic.partitions) for topic in request.topics)
    if count > PARTITIONS_LIMIT:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{count} partitions are given; at most {PARTITIONS_LIMIT} are allowed"
        )
    if not request.cancel:
        _check_target(state, request.to_node_id)
    draft = PlacementDraft(state, state.epoch_counter + 1)
    answer = pb.MovePartitionsResponse(version=state.version)
    for topic in request.topics:
        for partition in topic.partitions:
            answer.results.append(_asked(state, engine, draft, request, topic.topic_name, partition))
    found = _finished(state, draft)
    if not found:
        return Decision((), answer)
    answer.version = state.version + 1
    return Decision(found, answer, (CatalogChanged(nodes=False),))


def _check_target(state: CoordinatorState, node_id: int) -> None:
    live = state.live_nodes(pb.ROLE_LEADER)
    if node_id not in live:
        known = ", ".join(map(str, live)) or "none"
        text = f"Leader {node_id} is not live, so nothing can move there; live leaders: {known}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    if node_id in draining_leaders(state):
        text = f"Leader {node_id} is being drained, so nothing can move there (cancel that with drain --undo first)"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)


def _asked(
    state: CoordinatorState,
    engine: Engine,
    draft: PlacementDraft,
    request: pb.MovePartitionsRequest,
    topic_name: str,
    partition: int,
) -> MoveResult:
    """Notes the change of one partition in the draft, or says why it cannot be."""
    result = MoveResult(topic_name=topic_name, partition=partition, leader_node_id=NO_LEADER)
    topic = state.topic_named(topic_name)
    placement = None if topic is None else draft.placement(topic.topic_id, partition)
    if topic is None or placement is None:
        has = "it does not exist" if topic is None else f"it has {len(topic.placements)} partitions"
        result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        result.error_message = f"There is no partition {partition} of topic {topic_name[:300]}: {has}"
        return result
    result.leader_node_id = placement.leader_node_id
    try:
        if request.cancel:
            _take_back(draft, topic.topic_id, placement)
        elif not engine.data_is_local:
            _switch(draft, topic.topic_id, placement, request.to_node_id)
        else:
            _begin(state, draft, topic, placement, request.to_node_id)
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.message
    return result


def _take_back(draft: PlacementDraft, topic_id: bytes, placement: Placement) -> None:
    if not placement.is_moving:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"Partition {placement.partition} is not being moved")
    draft.place(topic_id, placement.partition, placement.leader_node_id)


def _switch(draft: PlacementDraft, topic_id: bytes, placement: Placement, node_id: int) -> None:
    if placement.leader_node_id != node_id:
        draft.place(topic_id, placement.partition, node_id)


def _begin(
    state: CoordinatorState, draft: PlacementDraft, topic: records_pb.TopicRecord, placement: Placement, node_id: int
) -> None:
    name = f"Partition {placement.partition} of topic {topic.name}"
    if placement.is_moving:
        if placement.moving_to_node_id == node_id:
            return
        text = f"{name} is already moving to leader {placement.moving_to_node_id}; cancel that move first"
        raise KafkaError(ErrorCode.REASSIGNMENT_IN_PROGRESS, text)
    if placement.leader_node_id == node_id:
        return
    if placement.leader_node_id not in state.live_nodes(pb.ROLE_LEADER):
        text = f"{name} is on the disk of leader {placement.leader_node_id}, which is not live; start it first"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    draft.move(topic.topic_id, placement.partition, node_id)


# Steps of the new leader


@decides(AdvancePartitionMove)
def decide_advance_move(
    state: CoordinatorState, command: AdvancePartitionMove
) -> Decision[Record, pb.AdvancePartitionMoveResponse, Effect]:
    """The next step of a move; KafkaError INVALID_REQUEST where there is no such move any more."""
    request = command.request
    topic = state.topics.get(request.topic_id)
    draft = PlacementDraft(state, state.epoch_counter + 1)
    placement = draft.placement(request.topic_id, request.partition)
    done: Decision[Record, pb.AdvancePartitionMoveResponse, Effect]
    done = Decision((), pb.AdvancePartitionMoveResponse())
    if placement is not None and request.step == Step.COMPLETE and _is_switched(placement, request):
        return done  # said again, because the answer was lost
    if (
        topic is None
        or placement is None
        or not placement.is_moving
        or placement.moving_to_node_id != request.node_id
        or placement.move_epoch != request.move_epoch
    ):
        text = (
            f"Partition {request.partition} does not move to leader {request.node_id} with epoch {request.move_epoch}"
        )
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    if request.step == Step.FENCE:
        if placement.is_fenced:
            return done
        draft.fence(topic.topic_id, placement.partition)
    elif request.step == Step.COMPLETE:
        if not placement.is_fenced:
            text = f"Partition {request.partition} is still served by leader {placement.leader_node_id}; fence it first"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        draft.place(topic.topic_id, placement.partition, request.node_id)
    elif request.step == Step.GIVE_UP:
        draft.place(topic.topic_id, placement.partition, placement.leader_node_id)
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Step {request.step} of a move is unknown")
    return Decision(_finished(state, draft), pb.AdvancePartitionMoveResponse(), (CatalogChanged(nodes=False),))


def _is_switched(placement: Placement, request: pb.AdvancePartitionMoveRequest) -> bool:
    return (
        placement.leader_node_id == request.node_id
        and not placement.is_moving
        and placement.placement_epoch > request.move_epoch
    )


# Emptying a leader


@decides(DrainLeader)
def decide_drain_leader(
    state: CoordinatorState, command: DrainLeader, engine: Engine
) -> Decision[Record, pb.DrainLeaderResponse, Effect]:
    """Starts or cancels the drain of a leader; KafkaError INVALID_REQUEST if it is not possible."""
    node_id, undo = command.request.node_id, command.request.undo
    name = f"{records.DRAINING_LEADER}{node_id}"
    left = state.partitions_placed.get(node_id, 0)
    answer = pb.DrainLeaderResponse(partitions_left=left)
    live = state.live_nodes(pb.ROLE_LEADER)
    draining = [other for other in draining_leaders(state) if other != node_id]
    if undo:
        if name not in state.texts:
            return Decision((), answer)
        draft = PlacementDraft(state, state.epoch_counter + 1)
        if engine.data_is_local:
            _stay(draft, node_id)
            draft.settle(live, draining)
        else:
            draft.spread(live, draining)
        found = [records.cluster_gone(name), *_with_epoch(state, draft.records())]
    else:
        _check_can_drain(engine, node_id, left, live, draining)
        settled = _settled(state, engine, live, [*draining, node_id], state.epoch_counter + 1)
        if name in state.texts and not settled:
            return Decision((), answer)
        node = state.nodes.get((pb.ROLE_LEADER, node_id))
        incarnation = NO_INCARNATION if node is None else node.incarnation
        found = [records.cluster_text(name, incarnation), *_with_epoch(state, settled)]
    found.append(records.cluster_number(records.CATALOG_VERSION, state.version + 1))
    return Decision(found, answer, (CatalogChanged(nodes=False),))


def _stay(draft: PlacementDraft, node_id: int) -> None:
    """Takes back all moves away from a leader."""
    for topic in draft.topics():
        for placement in list(topic.placements):
            if placement.is_moving and placement.leader_node_id == node_id:
                draft.place(topic.topic_id, placement.partition, node_id)


def _check_can_drain(engine: Engine, node_id: int, left: int, live: Sequence[int], draining: Iterable[int]) -> None:
    problem = None
    if node_id not in live:
        on_disk = left and engine.data_is_local
        problem = f"it is not live, and its {left} partitions are on its disk" if on_disk else "it is not registered"
    elif left and not any(other != node_id and other not in draining for other in live):
        problem = f"no other live leader can take its {left} partitions"
    if problem:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Leader {node_id} cannot be drained: {problem}")
