"""A tap between gateways, leaders, share coordinators and the coordinator that records messages in the history.

A request is noted when it reaches its handler and an answer when the handler gives it, so that the times are those of
the role that decides; a catalog is noted when it reaches the leader that follows it. Each event names the life of the
leader that it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from kshare_core.identifiers import SharePartitionKey, state_partition_of
from kshare_core.states import AcknowledgeType
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import (
    ADVANCE_PARTITION_MOVE,
    DROP_SHARE_PARTITIONS,
    END_TXN,
    INITIALIZE_SHARE_GROUP_STATE,
    MOVE_PARTITIONS,
    OFFSET_COMMIT,
    READ_SHARE_GROUP_STATE,
    REGISTER_NODE,
    RELEASE_SHARE_SESSION,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    SHARE_GROUP_HEARTBEAT,
    TRANSFER_PARTITION,
    TRANSFER_STATE_PARTITION,
    WATCH_CATALOG,
    WRITE_SHARE_GROUP_STATE,
)
from kshare_rpc.network import CallFailed, CallNotStarted
from support.simulation.history import (
    AcknowledgeArrived,
    AcknowledgeEnded,
    Acquired,
    CommitTryLost,
    EndArrived,
    Event,
    FaultEvent,
    GatewaysSeen,
    LateHeartbeat,
    LeaderEpochSeen,
    LeaderSeen,
    LeaseRenewed,
    LogHandedOver,
    PartitionTaken,
    Run,
    SessionReleased,
    StateLoaded,
    StateOwnersSeen,
    StatesHandedOver,
    StateWriteArrived,
    StateWriteUnconfirmed,
    StateWritten,
)
from support.simulation.kafka_clients.transactional_producer import producer_of
from support.simulation.loop import VirtualLoop
from support.simulation.network import SimulatedCall, SimulatedFabric

WITH_LEASES = ("leader", "share-coordinator")
"""Roles that serve only while their leases last."""

Batches = tuple[tuple[int, int, int, int], ...]


def _batches(partition: Any) -> Batches:
    """The state batches of a request's or an answer's partition."""
    return tuple(
        (batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
        for batch in getattr(partition, "state_batches", ())
    )


def _acknowledgements(partition: Any) -> list[tuple[Run, int]]:
    """Runs of offsets with their acknowledge types, in the order of the request."""
    found: list[tuple[Run, int]] = []
    for batch in partition.acknowledgement_batches:
        first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
        if len(set(types)) == 1:
            found.append(((first, last), types[0]))
        else:
            found.extend(((first + index, first + index), kind) for index, kind in enumerate(types))
    return found


def _gateway(owner: Any) -> str:
    return f"{owner.gateway_id} {owner.gateway_incarnation}"


class ClusterTap:
    """See the module's text. Puts itself on the fabric."""

    def __init__(self, loop: VirtualLoop, fabric: SimulatedFabric, add: Callable[[Event], None]) -> None:
        self._loop = loop
        self._add = add
        self._shared_topics: dict[bytes, None] = {}
        """Ids of the topics of which a share-partition was loaded."""
        self._leader_epochs: dict[tuple[str, bytes, int], int] = {}
        """By leader and partition: the epoch in the newest catalog that reached it."""
        self._newest_leaders: dict[tuple[bytes, int], tuple[int, int]] = {}
        """By partition: the newest leader epoch that any leader knows, and the leader's node id."""
        self._lease_ms: dict[str, int] = {}
        """By one life of a node."""
        self._state_partition_count = 0
        fabric.call_taps.append(self._seen)
        fabric.answer_taps.append(self._delivered)
        fabric.end_taps.append(self._failed)

    def _seen(self, call: SimulatedCall, request: Any, answer: Message | None) -> None:
        arrived, answered = self._HANDLERS.get(call.method, (None, None))
        if answer is None and arrived is not None:
            arrived(self, call, request)
        elif answer is not None and answered is not None:
            answered(self, call, request, answer)

    def _failed(self, call: SimulatedCall, error: CallFailed) -> None:
        request: Any
        if call.method == OFFSET_COMMIT:
            request = call.method.request_type.FromString(call.request)
            for offset in request.offsets:
                self._add(CommitTryLost(self._loop.now_s, request.group_id, offset.partition, offset.committed_offset))
        elif call.method == WRITE_SHARE_GROUP_STATE and not isinstance(error, CallNotStarted):
            request = call.method.request_type.FromString(call.request)
            for partition in request.partitions:
                self._add(
                    StateWriteUnconfirmed(
                        self._loop.now_s, repr(call.source), request.group_id, partition.partition, str(error)
                    )
                )

    def _end_arrived(self, call: SimulatedCall, request: Any) -> None:
        if not request.bumps_epoch:
            producer = producer_of(request.transactional_id)
            self._add(EndArrived(self._loop.now_s, call.sent_at, repr(call.source), producer, request.committed))

    # Nodes and the catalog

    def _registered(self, call: SimulatedCall, request: Any, answer: Any) -> None:
        # A node that registers again had lost its lease: what it only had in memory is gone, as after a crash.
        self._add(FaultEvent(self._loop.now_s, "registered", (call.source.host,), ""))

    def _watched(self, call: SimulatedCall, request: Any, answer: Any) -> None:
        if not answer.nodes_changed:
            return
        self._add(FaultEvent(self._loop.now_s, "sees other nodes", (call.source.host,), ""))

    def _delivered(self, call: SimulatedCall, response: bytes) -> None:
        """A node knows a catalog when its answer arrives, which may be long after it was given."""
        if call.method not in (WATCH_CATALOG, REGISTER_NODE) or not call.source.host.startswith(WITH_LEASES):
            return
        answer: Any = call.method.response_type.FromString(response)
        if answer.error_code:
            return
        self._lease_renewed(call, answer)
        if call.method == REGISTER_NODE:
            return
        if call.source.host.startswith("share-coordinator") and answer.state_partition_owners:
            epochs = tuple((owner.state_partition, owner.owner_epoch) for owner in answer.state_partition_owners)
            self._state_partition_count = answer.state_partition_count
            self._add(StateOwnersSeen(self._loop.now_s, repr(call.source), epochs))
        elif call.source.host.startswith("leader"):
            self._catalog_of_leader(call, answer)

    def _lease_renewed(self, call: SimulatedCall, answer: Any) -> None:
        """Where a node stands still, it learns later of what is noted here, and its lease does not last longer."""
        node = repr(call.source)
        if call.method == REGISTER_NODE:
            self._lease_ms[node] = answer.lease_ms
        self._add(LeaseRenewed(self._loop.now_s, node, call.sent_at, self._lease_ms.get(node, 0)))

    def _catalog_of_leader(self, call: SimulatedCall, answer: Any) -> None:
        if answer.nodes_changed:
            gateways = tuple(
                f"{node.node_id} {node.incarnation}"
                for node in answer.nodes
                if node.role == coordinator_pb2.ROLE_GATEWAY
            )
            self._add(GatewaysSeen(self._loop.now_s, repr(call.source), gateways))
        self._epochs_known(call, answer)

    def _epochs_known(self, call: SimulatedCall, answer: Any) -> None:
        """A leader begins anew with a partition that has another leader epoch: also where a drain cancels its move."""
        number = int(call.source.host.rpartition("-")[2])
        for topic in answer.topics:
            for partition in topic.partitions:
                self._leader_known(topic.topic_id, partition)
                if partition.leader_node_id != number:
                    continue
                place = (repr(call.source), topic.topic_id, partition.partition)
                before, now = self._leader_epochs.get(place), partition.leader_epoch
                self._leader_epochs[place] = now
                if before not in (None, now) and topic.topic_id in self._shared_topics:
                    self._add(LeaderEpochSeen(self._loop.now_s, place[0], partition.partition, now))
                    text = f"its leader epoch became {now}"
                    self._add(PartitionTaken(self._loop.now_s, place[0], "", partition.partition, text))

    def _leader_known(self, topic_id: bytes, partition: Any) -> None:
        place, now = (topic_id, partition.partition), (partition.leader_epoch, partition.leader_node_id)
        before = self._newest_leaders.get(place)
        if before is not None and before >= now:
            return
        self._newest_leaders[place] = now
        if before is not None and topic_id in self._shared_topics:
            self._add(LeaderSeen(self._loop.now_s, partition.partition, f"leader-{now[1]}"))

    def _move_advanced(self, call: SimulatedCall, request: Any) -> None:
        if request.topic_id in self._shared_topics:
            step = coordinator_pb2.AdvancePartitionMoveRequest.Step.Name(request.step)
            self._add(PartitionTaken(self._loop.now_s, "", "", request.partition, f"moves: {step}"))

    def _move_cancelled(self, call: SimulatedCall, request: Any) -> None:
        """A move that is taken back gives the partition a new leader epoch at its old leader."""
        for topic in request.topics if request.cancel else ():
            for partition in topic.partitions:
                self._add(PartitionTaken(self._loop.now_s, "", "", partition, "its move is cancelled"))

    def _log_sent(self, call: SimulatedCall, request: Any, answer: Any) -> None:
        if request.is_fenced and not answer.error_code and request.topic_id in self._shared_topics:
            self._add(LogHandedOver(self._loop.now_s, repr(call.executor), request.partition, request.move_epoch))

    # Share-partition state

    def _states_sent(self, call: SimulatedCall, request: Any, answer: Any) -> None:
        if not answer.error_code:
            self._add(
                StatesHandedOver(self._loop.now_s, repr(call.executor), request.state_partition, request.owner_epoch)
            )

    def _state_partition_of(self, group: str, asked: Any) -> int:
        if not self._state_partition_count:
            return -1
        key = SharePartitionKey(group, asked.topic_id, asked.partition)
        return state_partition_of(key, self._state_partition_count)

    def _state_loaded(self, call: SimulatedCall, request: Any, answer: Any) -> None:
        for asked, result in zip(request.partitions, answer.results, strict=True):
            self._shared_topics[asked.topic_id] = None
            if result.error_code != 0:
                continue
            self._add(
                StateLoaded(
                    self._loop.now_s,
                    call.arrived_at,
                    call.sent_at,
                    request.group_id,
                    asked.partition,
                    repr(call.source),
                    asked.leader_epoch,
                    result.state_epoch,
                    result.start_offset,
                    _batches(result),
                    repr(call.executor),
                )
            )

    def _state_write_arrived(self, call: SimulatedCall, request: Any) -> None:
        for asked in request.partitions:
            self._add(
                StateWriteArrived(
                    self._loop.now_s,
                    call.call_id,
                    repr(call.source),
                    request.group_id,
                    asked.partition,
                    asked.state_epoch,
                    asked.start_offset,
                    _batches(asked),
                )
            )

    def _state_written(self, call: SimulatedCall, request: Any, answer: Any) -> None:
        now, group = self._loop.now_s, request.group_id
        for asked, result in zip(request.partitions, answer.results, strict=True):
            if result.error_code != 0:
                why = f"{result.error_code} {result.error_message}"
                self._add(StateWriteUnconfirmed(now, repr(call.source), group, asked.partition, why))
                continue
            leader_epoch, number = getattr(asked, "leader_epoch", -1), call.call_id
            if call.method == INITIALIZE_SHARE_GROUP_STATE:
                number = 0
            self._add(
                StateWritten(
                    now,
                    call.sent_at,
                    group,
                    asked.partition,
                    asked.state_epoch,
                    leader_epoch,
                    asked.start_offset,
                    _batches(asked),
                    number,
                    repr(call.executor),
                    self._state_partition_of(group, asked),
                    call.arrived_at,
                )
            )

    # Records

    def _share_fetched(self, call: SimulatedCall, request: Any, answer: Any) -> None:
        now, owner = self._loop.now_s, request.owner
        for partition in answer.partitions:
            for acquired in partition.acquired_records:
                self._add(
                    Acquired(
                        now,
                        call.sent_at,
                        owner.group_id,
                        owner.member_id,
                        partition.partition,
                        (acquired.first_offset, acquired.last_offset),
                        acquired.delivery_count,
                        repr(call.executor),
                        _gateway(owner),
                        request.fetch_number,
                        call.arrived_at,
                    )
                )
        codes = {
            (partition.topic_id, partition.partition): partition.acknowledge_error_code
            for partition in answer.partitions
        }
        self._acknowledge_ended(call, request, codes)

    def _acknowledged(self, call: SimulatedCall, request: Any, answer: Any) -> None:
        codes = {(partition.topic_id, partition.partition): partition.error_code for partition in answer.partitions}
        self._acknowledge_ended(call, request, codes)

    def _acknowledge_arrived(self, call: SimulatedCall, request: Any) -> None:
        owner = request.owner
        for partition in request.partitions:
            found = _acknowledgements(partition)
            ended = [(run, kind) for run, kind in found if kind != AcknowledgeType.RENEW]
            renewed = tuple(run for run, kind in found if kind == AcknowledgeType.RENEW)
            if found:
                self._add(
                    AcknowledgeArrived(
                        self._loop.now_s,
                        call.call_id,
                        repr(call.executor),
                        owner.group_id,
                        owner.member_id,
                        _gateway(owner),
                        partition.partition,
                        tuple(run for run, _ in ended),
                        tuple(kind for _, kind in ended),
                        request.delivered_fetch_number,
                        renewed,
                    )
                )

    def _acknowledge_ended(self, call: SimulatedCall, request: Any, codes: dict[tuple[bytes, int], int]) -> None:
        for partition in request.partitions:
            code = codes.get((partition.topic_id, partition.partition))
            if partition.acknowledgement_batches and code is not None:
                self._add(
                    AcknowledgeEnded(
                        self._loop.now_s,
                        call.call_id,
                        repr(call.executor),
                        request.owner.group_id,
                        partition.partition,
                        code,
                    )
                )

    def _session_released(self, call: SimulatedCall, request: Any) -> None:
        owner = request.owner
        self._add(
            SessionReleased(
                self._loop.now_s,
                repr(call.executor),
                owner.group_id,
                owner.member_id,
                _gateway(owner),
                tuple(partition.partition for partition in request.partitions),
                request.last_fetch_number,
                tuple(request.lost_fetch_numbers),
                tuple(request.undelivered_fetch_numbers),
            )
        )

    def _heartbeat(self, call: SimulatedCall, request: Any) -> None:
        if call.is_given_up:
            self._add(LateHeartbeat(self._loop.now_s, request.group_id, request.member_id))

    def _dropped(self, call: SimulatedCall, request: Any) -> None:
        for partition in request.partitions:
            self._add(
                PartitionTaken(
                    self._loop.now_s, repr(call.executor), request.group_id, partition.partition, "its state changed"
                )
            )

    _HANDLERS: dict[Any, tuple[Any, Any]] = {
        REGISTER_NODE: (None, _registered),
        SHARE_GROUP_HEARTBEAT: (_heartbeat, None),
        WATCH_CATALOG: (None, _watched),
        ADVANCE_PARTITION_MOVE: (_move_advanced, None),
        MOVE_PARTITIONS: (_move_cancelled, None),
        TRANSFER_PARTITION: (None, _log_sent),
        TRANSFER_STATE_PARTITION: (None, _states_sent),
        READ_SHARE_GROUP_STATE: (None, _state_loaded),
        WRITE_SHARE_GROUP_STATE: (_state_write_arrived, _state_written),
        INITIALIZE_SHARE_GROUP_STATE: (None, _state_written),
        SHARE_FETCH: (_acknowledge_arrived, _share_fetched),
        SHARE_ACKNOWLEDGE: (_acknowledge_arrived, _acknowledged),
        RELEASE_SHARE_SESSION: (_session_released, None),
        DROP_SHARE_PARTITIONS: (_dropped, None),
        END_TXN: (_end_arrived, None),
    }
    """By method: what to do with a request that arrives, and with its answer."""
