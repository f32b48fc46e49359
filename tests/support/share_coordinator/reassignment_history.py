"""One seeded history of share coordinators between which state partitions move, held against the naive rules.

Three share coordinators under one real coordinator, on simulated hosts. Clients, one for each share-partition, send the
five RPCs to whichever node they believe in, while an operator starts, stops, kills and freezes nodes, drains them, cuts
links and fills disks; often in the middle of a move, when one of its messages passes. Whatever was answered must be
what the naive rules say.

Of a call whose outcome is unknown a client waits until it can no longer take effect, and keeps both states for
possible; the next answer tells. At the end all is healed, every state is read once more, no row lies at a node that is
not its owner, and nothing moves.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import SharePartitionKey, state_partition_of
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import (
    COMPLETE_STATE_PARTITION_MOVE,
    DELETE_SHARE_GROUP_STATE,
    DESCRIBE_STATE_PARTITIONS,
    DRAIN_SHARE_COORDINATOR,
    INITIALIZE_SHARE_GROUP_STATE,
    READ_SHARE_GROUP_STATE,
    READ_SHARE_GROUP_STATE_SUMMARY,
    TRANSFER_STATE_PARTITION,
    WRITE_SHARE_GROUP_STATE,
)
from kshare_rpc.network import CallFailed, Method, Network
from kshare_runtime.ports import Environment
from kshare_share_coordinator.machine.operations import (
    DeleteState,
    InitializeState,
    Operation,
    ReadState,
    ReadStateSummary,
    WriteState,
)
from kshare_share_coordinator.machine.state_batches import StateBatch
from kshare_share_coordinator.node import ShareCoordinatorNode
from kshare_share_coordinator.reassignment.rows import StatePartitionRows
from kshare_share_coordinator.settings import ShareCoordinatorSettings
from support.share_coordinator.naive import NaiveShareCoordinator, NaiveState
from support.share_coordinator.stores import store_of
from support.simulation.cluster import COORDINATOR, RPC_PORT, Cluster, Shape
from support.simulation.hosts import BuildNode, Node, SimulatedHost
from support.simulation.loop import Incarnation, VirtualLoop
from support.simulation.network import LINGER_S, SimulatedNetwork

STATE_PARTITIONS = 4
PIECE_BYTES = 200
NODES = tuple(f"share-coordinator-{number}" for number in (1, 2, 3))
TOPIC_ID = bytes(range(1, 17))
CALL_TIMEOUT_MS = 1_000
LONGEST_FAULT_S = 3.0
QUIET_AFTER_S = LINGER_S + 2 * LONGEST_FAULT_S
"""After so long a call that was not answered has taken effect, or never will."""
HEALED_WITHIN_S = 60.0
RETRY_S = 0.05
NOT_APPLIED = frozenset({ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE})
LEASE_RAN_OUT = "has had no response"


class HistoryCounts(NamedTuple):
    """What happened in one history."""

    answers: int
    unknown: int
    moves_completed: int
    moves_taken_back: int
    faults_in_moves: int


class MovingCluster(Cluster):
    """Copies take many pieces even where there is little to copy."""

    def _build(self, role: str, number: int) -> BuildNode:
        if role != "share-coordinator":
            return super()._build(role, number)

        def build(environment: Environment, network: Network, host: SimulatedHost) -> Node:
            settings = ShareCoordinatorSettings(
                node_id=number,
                listen=f"{host.name}:{RPC_PORT}",
                coordinator_address=f"{COORDINATOR}:{RPC_PORT}",
                configs=self.configs,
                move_piece_bytes=PIECE_BYTES,
            )
            return ShareCoordinatorNode(environment=environment, network=network, settings=settings)

        return build


class MovingStates:
    """See the module's text; `run` raises AssertionError where an answer is wrong."""

    def __init__(self, seed: int, *, operations: int = 10, faults: int = 4) -> None:
        self.random = random.Random(f"{seed}/moving")
        self.loop = VirtualLoop(time_limit=2_000.0, step_limit=500_000)
        shape = Shape(
            share_coordinators=len(NODES),
            leaders=0,
            gateways=0,
            configs={
                "share.coordinator.state.topic.num.partitions": str(STATE_PARTITIONS),
                "share.coordinator.snapshot.update.records.per.snapshot": "3",
                "kshare.node.lease.ms": "4000",
            },
        )
        self.cluster = MovingCluster(self.loop, f"moving-{seed}", shape)
        self.network = SimulatedNetwork(self.cluster.fabric, Incarnation("clients", 1))
        self.clients = [_Client(self, key, random.Random(f"{seed}/{key}")) for key in _keys()]
        self._operations = operations
        self._fault_count = faults
        self.answers = self.unknown = self.faults_in_moves = 0
        self.owners: dict[int, int] = {}
        self._in_moves: list[asyncio.Task[None]] = []
        self.moves: dict[str, int] = {"completed": 0, "taken_back": 0}

    def run(self) -> HistoryCounts:
        self.loop.run(self._main())
        assert self.cluster.problems() == []
        return HistoryCounts(
            self.answers, self.unknown, self.moves["completed"], self.moves["taken_back"], self.faults_in_moves
        )

    async def _main(self) -> None:
        await asyncio.gather(self._host(COORDINATOR).start(), self._host(NODES[0]).start())
        for first in NODES:  # moves take a while
            for second in NODES:
                self.cluster.fabric.conditions.link_latency[first, second] = self.random.choice((0.0, 0.01, 0.05))
        working = [self.loop.create_task(client.work(self._operations)) for client in self.clients]
        self.cluster.fabric.taps.append(self._tap)
        for _ in range(self._fault_count):
            await self._disturb()
            await asyncio.sleep(self.random.choice((0.0, 0.02, 0.1, 0.3)))
        self.cluster.fabric.taps.remove(self._tap)
        await asyncio.gather(*self._in_moves)
        await self._heal()
        await asyncio.gather(*working)
        await self._wait_until_settled()
        for client in self.clients:
            await client.check_at_the_end()
        self._check_rows()

    def _host(self, name: str) -> SimulatedHost:
        return self.cluster.hosts[name]

    # The operator

    async def _disturb(self) -> None:
        step, weights = zip(*self._steps(), strict=True)
        await self.random.choices(step, weights)[0]()

    def _steps(self) -> list[tuple[Callable[[], Awaitable[None]], int]]:
        return [
            (self._start_another, 6),
            (self._drain, 5),
            (self._kill, 4),
            (self._stop, 1),
            (self._freeze, 2),
            (self._restart_the_coordinator, 2),
            (self._cut, 2),
            (self._block, 1),
            (self._slow, 2),
            (self._fill_disk, 2),
        ]

    def _tap(
        self, source: str, target: str, method: Method[Any, Any], request: Any, answer: Any, sent_at: float
    ) -> None:
        """A message of a move passes: now and then something happens to one of those that take part."""
        if method not in (TRANSFER_STATE_PARTITION, COMPLETE_STATE_PARTITION_MOVE) or self.random.random() > 0.1:
            return
        happening = self.random.choice((self._kill_now, self._take_back, self._move_anew_unseen))
        victim = self.random.choice((source, source, target))
        self.faults_in_moves += 1
        happens = happening(victim if happening == self._kill_now else source)
        # Not as a part of the host whose message this is: it may be the one that dies.
        self._in_moves.append(self.loop.create_task(happens, context=contextvars.Context()))

    async def _kill_now(self, name: str) -> None:
        host = self._host(name)
        host.crash(silent=self.random.random() < 0.2)
        await asyncio.sleep(self._soon())
        self._start(host)

    async def _take_back(self, name: str) -> None:
        """The receiver of a move shall be empty, and soon it may have state partitions again."""
        node_id = NODES.index(name) + 1
        await self._ask_to_drain(node_id, undo=False)
        await asyncio.sleep(self._soon())
        await self._ask_to_drain(node_id, undo=True)

    async def _move_anew_unseen(self, name: str) -> None:
        """The same, and the receiver sees only the second of two moves."""
        host = self._host(name)
        host.pause()
        node_id = NODES.index(name) + 1
        await self._ask_to_drain(node_id, undo=False)
        await asyncio.sleep(self.random.choice((0.02, 0.2)))
        await self._ask_to_drain(node_id, undo=True)
        await asyncio.sleep(self._soon())
        host.resume()

    def _soon(self) -> float:
        return self.random.choice((0.0, 0.002, 0.005, 0.02, 0.3, LONGEST_FAULT_S)) * self.random.random()

    async def _start_another(self) -> None:
        idle = [name for name in NODES if not self._host(name).running]
        if idle:
            self._host(self.random.choice(idle)).start()

    async def _drain(self) -> None:
        number = self.random.randrange(len(NODES)) + 1
        await self._ask_to_drain(number, undo=self.random.random() < 0.3)

    async def _ask_to_drain(self, node_id: int, *, undo: bool) -> None:
        request = pb.DrainShareCoordinatorRequest(node_id=node_id, undo=undo)
        channel = self.network.connect(f"{COORDINATOR}:{RPC_PORT}")
        try:
            await channel.call(DRAIN_SHARE_COORDINATOR, request, timeout_ms=CALL_TIMEOUT_MS)
        except CallFailed:
            return  # it is down, and that is the next fault's business

    async def _kill(self) -> None:
        host = self._host(self.random.choice(NODES))
        await asyncio.sleep(self._soon())
        if host.running:
            host.crash(silent=self.random.random() < 0.3)
            await asyncio.sleep(self._soon())
            self._start(host)

    async def _stop(self) -> None:
        host = self._host(self.random.choice(NODES))
        await host.stop()
        await asyncio.sleep(self._soon())
        self._start(host)

    def _start(self, host: SimulatedHost) -> None:
        if not host.running:
            host.start()

    async def _freeze(self) -> None:
        host = self._host(self.random.choice((*NODES, COORDINATOR)))
        host.pause()
        await asyncio.sleep(self._soon())
        host.resume()

    async def _restart_the_coordinator(self) -> None:
        host = self._host(COORDINATOR)
        host.crash()
        await asyncio.sleep(self._soon())
        self._start(host)

    async def _cut(self) -> None:
        self.cluster.fabric.cut(*self.random.sample((*NODES, COORDINATOR), 2))

    async def _block(self) -> None:
        first, second = self.random.sample((*NODES, COORDINATOR), 2)
        self.cluster.fabric.block(first, second)
        await asyncio.sleep(self._soon())
        self.cluster.fabric.unblock(first, second)

    async def _slow(self) -> None:
        self.cluster.fabric.conditions.host_latency[self.random.choice((*NODES, COORDINATOR))] = 0.05

    async def _fill_disk(self) -> None:
        self._host(self.random.choice((*NODES, COORDINATOR))).disk.fail_next_writes(self.random.choice((1, 2, 20)))

    # The end

    async def _heal(self) -> None:
        self.cluster.fabric.heal()
        for host in self.cluster.hosts.values():
            host.disk.fail_next_writes(0)
            host.resume()
            self._start(host)

    async def _wait_until_settled(self) -> None:
        deadline = self.loop.time() + HEALED_WITHIN_S
        while problem := await self._unsettled():
            assert self.loop.time() < deadline, f"after {HEALED_WITHIN_S} s without faults {problem}"
            for number in range(len(NODES)):  # again and again: the coordinator's disk may take no writes yet
                await self._ask_to_drain(number + 1, undo=True)
            await asyncio.sleep(0.2)

    async def _unsettled(self) -> str | None:
        channel = self.network.connect(f"{COORDINATOR}:{RPC_PORT}")
        try:
            request = pb.DescribeStatePartitionsRequest()
            answer, _ = await channel.call(DESCRIBE_STATE_PARTITIONS, request, timeout_ms=CALL_TIMEOUT_MS)
        except CallFailed as failure:
            return str(failure)
        self.owners = {owner.state_partition: owner.node_id for owner in answer.state_partitions}
        if len(self.owners) != STATE_PARTITIONS or any(owner.is_moving for owner in answer.state_partitions):
            return f"the owners are {answer}"
        loads = [list(self.owners.values()).count(number + 1) for number in range(len(NODES))]
        if max(loads) - min(loads) > 1:
            return f"the loads are {loads}"
        if not all(isinstance(self._host(name).node, ShareCoordinatorNode) for name in NODES):
            return "not all nodes are up"
        foreign = [(name, number) for name in NODES for number in self._rows_at(name) if not self._owns(name, number)]
        return f"rows lie where nobody needs them: {foreign}" if foreign else None

    def _node(self, name: str) -> ShareCoordinatorNode:
        node = self._host(name).node
        assert isinstance(node, ShareCoordinatorNode)
        return node

    def _rows_at(self, name: str) -> list[int]:
        return StatePartitionRows(store_of(self._node(name))).state_partitions()

    def _owns(self, name: str, state_partition: int) -> bool:
        return NODES[self.owners[state_partition] - 1] == name

    def _check_rows(self) -> None:
        """Each state is where its owner is and nowhere else (the latter is what was waited for)."""
        for client in self.clients:
            if client.possible[0] is not None:
                number = state_partition_of(client.key, STATE_PARTITIONS)
                assert [name for name in NODES if number in self._rows_at(name) and self._owns(name, number)]
        for name in NODES:
            metrics = self._node(name).move_metrics
            for step in self.moves:
                self.moves[step] += int(metrics.value("state_partition_moves_total", direction="in", step=step))


class _Client:
    """One share-partition's RPCs, one after the other. `possible` are the states that it may have, None: no state."""

    def __init__(self, history: MovingStates, key: SharePartitionKey, draw: random.Random) -> None:
        self.key = key
        self.possible: list[NaiveState | None] = [None]
        self._history = history
        self._random = draw
        self._target = 0
        self._epochs = [1, 0]

    async def work(self, operations: int) -> None:
        await self.carry_out(InitializeState(self.key, 1, -1))
        for _ in range(operations):
            await self.carry_out(self.draw())
            await asyncio.sleep(self._random.choice((0.0, 0.005, 0.05, 0.2)))

    async def check_at_the_end(self) -> None:
        await self.carry_out(ReadStateSummary(self.key))
        await self.carry_out(ReadState(self.key, -1))
        assert len(self.possible) == 1, f"{self.key} may have any of {self.possible}"

    def draw(self) -> Operation:
        draw = self._random
        kind = draw.choices(("write", "read", "summary", "initialize", "delete"), (12, 3, 2, 2, 1))[0]
        if draw.random() < 0.1:
            self._epochs[draw.randrange(2)] += 1
        state_epoch, leader_epoch = (max(0, epoch - (draw.random() < 0.1)) for epoch in self._epochs)
        match kind:
            case "write":
                start = draw.choice((-1, -1, draw.randrange(100)))
                return WriteState(self.key, state_epoch, leader_epoch, start, draw.randrange(5), self._batches())
            case "read":
                return ReadState(self.key, draw.choice((-1, leader_epoch)))
            case "summary":
                return ReadStateSummary(self.key)
            case "initialize":
                return InitializeState(self.key, state_epoch, draw.choice((-1, draw.randrange(100))))
        return DeleteState(self.key)

    def _batches(self) -> list[StateBatch]:
        draw = self._random
        if draw.random() < 0.3:  # with gaps, so that the state is too large for a snapshot each time
            first = draw.randrange(90)
            return [StateBatch(first + 3 * i, first + 3 * i, draw.choice((0, 2, 4)), 1) for i in range(20)]
        first = draw.randrange(150)
        return [StateBatch(first, first + draw.randrange(20), draw.choice((0, 2, 3, 4)), draw.randrange(4))]

    async def carry_out(self, operation: Operation) -> None:
        """Sends it until somebody says what became of it; what each step means for the possible states is kept."""
        while True:
            result = await self._send(operation)
            if result is None:
                self._history.unknown += 1
                await asyncio.sleep(QUIET_AFTER_S)
                self._may_have_happened(operation)
                if not isinstance(operation, ReadState | ReadStateSummary) and self._random.random() < 0.5:
                    return  # whoever comes next finds out
            elif result.error_code == ErrorCode.NOT_COORDINATOR:
                if LEASE_RAN_OUT in result.error_message:
                    self._may_have_happened(operation)
                self._target += 1
            elif result.error_code not in (*NOT_APPLIED, ErrorCode.KAFKA_STORAGE_ERROR):
                self._happened(operation, result)
                return
            await asyncio.sleep(RETRY_S)

    async def _send(self, operation: Operation) -> Any:
        method, request = _request_of(operation)
        address = f"{NODES[self._target % len(NODES)]}:{RPC_PORT}"
        try:
            answer, _ = await self._history.network.connect(address).call(method, request, timeout_ms=CALL_TIMEOUT_MS)
        except CallFailed:
            self._target += 1
            return None
        (result,) = answer.results
        return result

    def _may_have_happened(self, operation: Operation) -> None:
        for state in list(self.possible):
            _, _, after = self._naive(state, operation)
            if after not in self.possible:
                self.possible.append(after)

    def _happened(self, operation: Operation, result: Any) -> None:
        self._history.answers += 1
        left: list[NaiveState | None] = []
        for state in self.possible:
            error_code, found, after = self._naive(state, operation)
            if error_code == result.error_code and _agrees(operation, found, result) and after not in left:
                left.append(after)
        assert left, f"{operation} was answered with {result}, but the state may only be one of {self.possible}"
        self.possible = left

    def _naive(
        self, state: NaiveState | None, operation: Operation
    ) -> tuple[ErrorCode, NaiveState | None, NaiveState | None]:
        """The error, the state that is answered, and the state afterwards."""
        naive = NaiveShareCoordinator()
        if state is not None:
            naive.states[self.key] = state.copy()
        error_code, found = naive.run(operation)
        return error_code, found, naive.states.get(self.key)


def _keys() -> list[SharePartitionKey]:
    return [SharePartitionKey(group, TOPIC_ID, partition) for group in ("a", "b") for partition in (0, 1, 2)]


def _request_of(operation: Operation) -> tuple[Method[Any, Any], Any]:
    key = operation.key
    partition: dict[str, Any] = {"topic_id": key.topic_id, "partition": key.partition}
    match operation:
        case InitializeState():
            partition |= {"state_epoch": operation.state_epoch, "start_offset": operation.start_offset}
            method: Method[Any, Any] = INITIALIZE_SHARE_GROUP_STATE
        case ReadState():
            partition |= {"leader_epoch": operation.leader_epoch}
            method = READ_SHARE_GROUP_STATE
        case WriteState():
            partition |= {
                "state_epoch": operation.state_epoch,
                "leader_epoch": operation.leader_epoch,
                "start_offset": operation.start_offset,
                "delivery_complete_count": operation.delivery_complete_count,
                "state_batches": [messages.StateBatch(**batch._asdict()) for batch in operation.state_batches],
            }
            method = WRITE_SHARE_GROUP_STATE
        case DeleteState():
            method = DELETE_SHARE_GROUP_STATE
        case ReadStateSummary():
            partition |= {"leader_epoch": -1}
            method = READ_SHARE_GROUP_STATE_SUMMARY
    return method, method.request_type(group_id=key.group_id, partitions=[partition])


def _agrees(operation: Operation, found: NaiveState | None, result: Any) -> bool:
    if result.error_code or found is None:
        return True
    if isinstance(operation, ReadStateSummary):
        answered: Sequence[int] = (
            result.state_epoch,
            result.leader_epoch,
            result.start_offset,
            result.delivery_complete_count,
        )
        return answered == (
            found.state_epoch,
            found.leader_epoch,
            found.start_offset,
            found.delivery_complete_count,
        )
    offsets = {
        offset: (batch.delivery_count, batch.delivery_state)
        for batch in result.state_batches
        for offset in range(batch.first_offset, batch.last_offset + 1)
    }
    return (result.state_epoch, result.start_offset, offsets) == (found.state_epoch, found.start_offset, found.offsets)
