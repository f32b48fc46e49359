"""Metrics of a coordinator, and their source for scrapes.

Commands are counted when they are submitted, records when they are durable. Groups, topics and nodes are read at each
scrape. Reading the state of many groups takes long, so it happens before the scrape, GROUPS_PER_TURN groups in a turn
of the event loop.

If several coordinators share the metadata, each shows its own groups, and the active one the catalog.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.commands import Command
from kshare_coordinator.machine.groups.classic.group import ClassicGroupInMemory
from kshare_coordinator.machine.groups.namespace import GroupType, is_simple
from kshare_coordinator.machine.records import AnyRecord, Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_coordinator.machine.transactions.metadata import TransactionState
from kshare_coordinator.metadata.port import CoordinatorMember
from kshare_core.distribution import DURATION_BOUNDS_S, Distribution, no_clock
from kshare_core.errors import StorageFailure
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_runtime.ports import KeyValueStore
from kshare_servicekit.metric_families import Readings, counter, gauge, histogram
from kshare_servicekit.store_metrics import StoreFamilies

GROUPS_PER_TURN = 500
APPEND_SIZE_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000)

ACTIVE = gauge("coordinator_active", "1 at the active coordinator, which owns the catalog, else 0.")
GROUP_PARTITIONS = gauge("coordinator_group_partitions", "Group partitions owned by this coordinator, of 50.")
GROUPS = gauge(
    "coordinator_groups",
    "Groups of this coordinator by type (share, consumer, classic) and state, as in ListGroups (Kafka: group-count, "
    "share-group-count).",
    "type",
    "state",
)
MEMBERS = gauge("coordinator_group_members", "Members of this coordinator's groups.", "type")
OFFSETS = gauge("coordinator_stored_offsets", "Stored committed offsets, including those of open transactions.")
COMMANDS = counter(
    "coordinator_commands", "Commands decided, from requests and timers, including refused ones.", "command"
)
HEARTBEATS = counter("coordinator_heartbeats", "Heartbeats of members, by type of group.", "type")
REBALANCES = counter(
    "coordinator_rebalances",
    "New group epochs or generations, by type of group (Kafka: share-group-rebalance and so on).",
    "type",
)
EXPIRATIONS = counter(
    "coordinator_expirations",
    "Expirations by kind: node (its lease), member (its session), revocation (partitions not revoked in time), "
    "transaction (transaction.timeout.ms), classic_timer (timers of classic groups).",
    "what",
)
COMMITTED_OFFSETS = counter("coordinator_committed_offsets", "Offsets made durable by commits; each partition counts.")
CATALOG_VERSION = gauge("coordinator_catalog_version", "Version of the catalog; it grows with each change.")
CATALOG_BYTES = gauge(
    "coordinator_catalog_bytes",
    "Bytes of the catalog (topics, and configs of groups and brokers), which every role holds in memory.",
)
CATALOG_BYTES_LIMIT = gauge(
    "coordinator_catalog_bytes_limit",
    "kshare.catalog.max.bytes: requests that would make the catalog larger are refused.",
)
NODES = gauge("coordinator_nodes", "Nodes with a lease, by role.", "role")
TOPICS = gauge("coordinator_topics", "Topics.")
PARTITIONS = gauge("coordinator_partitions", "Partitions of all topics.")
MOVING_PARTITIONS = gauge("coordinator_moving_partitions", "Partitions being reassigned to another leader.")
PARTITIONS_WITHOUT_LEADER = gauge(
    "coordinator_partitions_without_leader", "Partitions without a live leader (Kafka: OfflinePartitionsCount)."
)
STATE_PARTITIONS = gauge("coordinator_state_partitions", "Partitions of __share_group_state.")
STATE_PARTITIONS_WITHOUT_OWNER = gauge(
    "coordinator_state_partitions_without_owner",
    "Partitions of __share_group_state without a live share coordinator: their groups are stalled.",
)
MOVING_STATE_PARTITIONS = gauge(
    "coordinator_moving_state_partitions", "Partitions of __share_group_state being reassigned."
)
TRANSACTIONS = gauge("coordinator_transactions", "Transactional ids by the state of their newest transaction.", "state")
TRANSACTIONS_ENDED = counter("coordinator_transactions_ended", "Transactions that ended, by outcome.", "outcome")
APPEND_SECONDS = histogram(
    "coordinator_append_duration_seconds",
    "Duration of one durable write of all records of a turn, in seconds, including failed ones.",
)
APPEND_SIZE = histogram("coordinator_append_records", "Records per durable write.")
APPEND_FAILURES = counter(
    "coordinator_append_failures", "Writes that failed on disk or in etcd, or whose outcome is unknown."
)
STORE = StoreFamilies("coordinator")

FAMILIES = (
    *(ACTIVE, GROUP_PARTITIONS, GROUPS, MEMBERS, OFFSETS, COMMANDS, HEARTBEATS, REBALANCES, EXPIRATIONS),
    *(COMMITTED_OFFSETS, CATALOG_VERSION, CATALOG_BYTES, CATALOG_BYTES_LIMIT, NODES, TOPICS, PARTITIONS),
    *(MOVING_PARTITIONS, PARTITIONS_WITHOUT_LEADER),
    *(STATE_PARTITIONS, STATE_PARTITIONS_WITHOUT_OWNER, MOVING_STATE_PARTITIONS),
    *(TRANSACTIONS, TRANSACTIONS_ENDED, APPEND_SECONDS, APPEND_SIZE, APPEND_FAILURES),
    *STORE.families,
)

_HEARTBEATS: dict[type, GroupType] = {
    commands.ShareGroupHeartbeat: GroupType.SHARE,
    commands.ConsumerGroupHeartbeat: GroupType.CONSUMER,
    commands.ClassicHeartbeat: GroupType.CLASSIC,
}
_EXPIRATIONS: dict[type, str] = {
    commands.ExpireNode: "node",
    commands.ExpireMember: "member",
    commands.ExpireRevocation: "revocation",
    commands.AbortTimedOutTransaction: "transaction",
    commands.ClassicTimerExpired: "classic_timer",
}
_OUTCOMES = {TransactionState.COMPLETE_COMMIT: "commit", TransactionState.COMPLETE_ABORT: "abort"}
_EPOCH_KINDS = {"share_group": GroupType.SHARE, "consumer_group": GroupType.CONSUMER}


class CoordinatorMetrics:
    """Counters of commands and records; `now` is a steady clock in seconds."""

    def __init__(self) -> None:
        self.now: Callable[[], float] = no_clock
        self.commands: dict[type, int] = {}
        self.rebalances = dict.fromkeys(GroupType, 0)
        self.committed_offsets = 0
        self.transactions_ended = dict.fromkeys(_OUTCOMES.values(), 0)
        self.append_seconds = Distribution(DURATION_BOUNDS_S)
        self.append_size = Distribution(APPEND_SIZE_BOUNDS)
        self.append_failures = 0
        self._epochs: dict[tuple[GroupType, str], int] = {}
        """The newest epoch that was written of each group."""

    def submitted(self, command: Command[Any]) -> None:
        kind = type(command)
        self.commands[kind] = self.commands.get(kind, 0) + 1

    @contextmanager
    def append(self, found: Sequence[AnyRecord]) -> Iterator[None]:
        """Measures one durable write of these records; an exception inside counts as a failed write."""
        started_at = self.now()
        try:
            yield
        except Exception:
            self.append_failures += 1
            raise
        finally:
            self.append_seconds.observe(self.now() - started_at)
        self.append_size.observe(len(found))
        self.appended(found)

    def appended(self, found: Iterable[AnyRecord]) -> None:
        """Counts records that are durable, or that are never written to the store."""
        for record in found:
            if isinstance(record, ClassicGroupInMemory):
                self._note_epoch(GroupType.CLASSIC, record.group.group_id, record.group.generation_id)
            elif isinstance(record, Record):
                self._note(record)

    def _note(self, record: Record) -> None:
        kind = record.key.WhichOneof("kind") or ""
        has_value = record.HasField("value")
        if kind == "committed_offset":
            self.committed_offsets += has_value
        elif kind in _EPOCH_KINDS:
            group_id = getattr(record.key, kind)
            if has_value:
                self._note_epoch(_EPOCH_KINDS[kind], group_id, getattr(record.value, kind).epoch)
            else:
                self._epochs.pop((_EPOCH_KINDS[kind], group_id), None)
        elif kind == "classic_group" and not has_value:
            self._epochs.pop((GroupType.CLASSIC, record.key.classic_group), None)
        elif kind == "transaction" and has_value:
            outcome = _OUTCOMES.get(TransactionState(record.value.transaction.state))
            if outcome is not None:
                self.transactions_ended[outcome] += 1

    def _note_epoch(self, kind: GroupType, group_id: str, epoch: int) -> None:
        """Counts a rebalance if the epoch is new.

        All changes of a classic group pass here, so a classic group not seen before was loaded, unless its generation
        is 1.
        """
        before = self._epochs.get((kind, group_id))
        self._epochs[kind, group_id] = epoch
        if before is None:
            is_new = epoch == 1 if kind is GroupType.CLASSIC else True
        else:
            is_new = epoch > before
        self.rebalances[kind] += is_new


class MeasuredCore(Protocol):
    """The part of `core.Core` that a scrape reads."""

    @property
    def state(self) -> CoordinatorState: ...

    @property
    def members(self) -> Mapping[int, CoordinatorMember]: ...

    @property
    def catalog_bytes_limit(self) -> int: ...

    def has_catalog(self) -> bool: ...

    def own_group_partitions(self) -> list[int]: ...


class CoordinatorSource:
    """Metrics of one coordinator for a scrape; `core` and `store` are None before the start, `store` also with etcd."""

    def __init__(
        self,
        metrics: CoordinatorMetrics,
        core: Callable[[], MeasuredCore | None],
        store: Callable[[], KeyValueStore | None],
    ) -> None:
        self._metrics = metrics
        self._core = core
        self._store = store
        self._groups: dict[tuple[GroupType, str], int] = {}
        self._members = dict.fromkeys(GroupType, 0)

    async def prepare(self) -> None:
        """Counts all groups; groups created or deleted meanwhile may be counted or not."""
        groups: dict[tuple[GroupType, str], int] = {}
        members = dict.fromkeys(GroupType, 0)
        state = self._state()
        seen = 0
        for kind, group_ids in () if state is None else _tables(state):
            for group_id in group_ids:
                found = _state_of(kind, group_id, state) if state is not None else None
                if found is None:
                    continue
                groups[kind, found[0]] = groups.get((kind, found[0]), 0) + 1
                members[kind] += found[1]
                seen += 1
                if seen % GROUPS_PER_TURN == 0:
                    await asyncio.sleep(0)
                    state = self._state()
        self._groups, self._members = groups, members

    def read(self, readings: Readings) -> None:
        self._read_counts(readings)
        STORE.read(readings, self._store())
        core, state = self._core(), self._state()
        if core is None or state is None:
            return
        is_active = core.has_catalog()
        readings.add(ACTIVE, int(is_active))
        readings.add(GROUP_PARTITIONS, len(core.own_group_partitions()))
        for (kind, name), count in self._groups.items():
            readings.add(GROUPS, count, kind.value, name)
        for kind, count in self._members.items():
            readings.add(MEMBERS, count, kind.value)
        readings.add(OFFSETS, state.offsets.row_count)
        if is_active:
            _read_catalog(readings, state, len(core.members))
            readings.add(CATALOG_BYTES_LIMIT, core.catalog_bytes_limit)

    def _state(self) -> CoordinatorState | None:
        core = self._core()
        try:
            return None if core is None else core.state
        except StorageFailure:  # nothing is loaded: the health gauge shows it
            return None

    def _read_counts(self, readings: Readings) -> None:
        metrics = self._metrics
        for command, count in metrics.commands.items():
            readings.add(COMMANDS, count, command.__name__)
        for command, kind in _HEARTBEATS.items():
            readings.add(HEARTBEATS, metrics.commands.get(command, 0), kind.value)
        for command, what in _EXPIRATIONS.items():
            readings.add(EXPIRATIONS, metrics.commands.get(command, 0), what)
        for kind, count in metrics.rebalances.items():
            readings.add(REBALANCES, count, kind.value)
        for outcome, count in metrics.transactions_ended.items():
            readings.add(TRANSACTIONS_ENDED, count, outcome)
        readings.add(COMMITTED_OFFSETS, metrics.committed_offsets)
        readings.add(APPEND_SECONDS, metrics.append_seconds)
        readings.add(APPEND_SIZE, metrics.append_size)
        readings.add(APPEND_FAILURES, metrics.append_failures)


def _tables(state: CoordinatorState) -> list[tuple[GroupType, list[str]]]:
    simple = [group_id for group_id in state.offsets.committed if is_simple(state, group_id)]
    return [
        (GroupType.SHARE, list(state.share_groups)),
        (GroupType.CONSUMER, list(state.consumer_groups)),
        (GroupType.CLASSIC, [*state.classic_groups, *simple]),
    ]


def _state_of(kind: GroupType, group_id: str, state: CoordinatorState) -> tuple[str, int] | None:
    """A group's state and its number of members; None if the group is gone."""
    table: dict[GroupType, dict[str, Any]] = {
        GroupType.SHARE: state.share_groups,
        GroupType.CONSUMER: state.consumer_groups,
        GroupType.CLASSIC: state.classic_groups,
    }
    group = table[kind].get(group_id)
    if group is not None:
        return str(group.state), len(group.members)
    return ("Empty", 0) if kind is GroupType.CLASSIC and is_simple(state, group_id) else None


def _read_catalog(readings: Readings, state: CoordinatorState, coordinators: int) -> None:
    readings.add(CATALOG_VERSION, state.version)
    readings.add(CATALOG_BYTES, state.catalog_bytes)
    readings.add(NODES, coordinators, "coordinator")
    for role in (pb.ROLE_SHARE_COORDINATOR, pb.ROLE_LEADER, pb.ROLE_GATEWAY):
        name = pb.Role.Name(role).removeprefix("ROLE_").lower()
        readings.add(NODES, len(state.live_nodes(role)), name)
    readings.add(TOPICS, len(state.topics))
    readings.add(PARTITIONS, state.partition_count)
    readings.add(MOVING_PARTITIONS, state.moving_partitions)
    leaders = state.live_nodes(pb.ROLE_LEADER)
    without = sum([count for node_id, count in state.partitions_placed.items() if node_id not in leaders])
    readings.add(PARTITIONS_WITHOUT_LEADER, without)
    owners = state.live_nodes(pb.ROLE_SHARE_COORDINATOR)
    owned = sum([node_id in owners for node_id in state.state_partition_owners.values()])
    readings.add(STATE_PARTITIONS, state.state_partition_count)
    readings.add(STATE_PARTITIONS_WITHOUT_OWNER, state.state_partition_count - owned)
    moving = sum([partition.is_moving for partition in state.state_partitions.values()])
    readings.add(MOVING_STATE_PARTITIONS, moving)
    transactions: dict[TransactionState, int] = {}
    for transaction in state.transactions.values():
        transactions[transaction.state] = transactions.get(transaction.state, 0) + 1
    for transaction_state, count in transactions.items():
        readings.add(TRANSACTIONS, count, transaction_state.kafka_name)
