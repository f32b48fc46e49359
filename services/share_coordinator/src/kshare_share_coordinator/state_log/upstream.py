"""The kafka engine: states in the topic `<kshare.upstream.topic.prefix>state` of an existing cluster.

Partition N of the topic is the log of state partition N, with Kafka's own ShareSnapshot and ShareUpdate records. The
catalog says which node owns it; the claims in the log make sure (`kshare_upstream.fenced_log`). The node has no store
and needs no disk: a state partition that moves is claimed and read by its new owner.

`__share_group_state` is not served to clients: its records are those of the cluster's topic, with batches among them
that do not count.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from kshare_core.errors import ErrorCode, StorageFailure
from kshare_core.identifiers import SharePartitionKey
from kshare_rpc.catalog import CatalogView
from kshare_runtime.ports import Environment
from kshare_servicekit.metric_families import Readings
from kshare_share_coordinator.handlers.states_elsewhere import StatesElsewhere
from kshare_share_coordinator.machine.operations import Operation, Result
from kshare_share_coordinator.machine.share_group_offset import Record
from kshare_share_coordinator.metrics import StateMetrics, read_log_metrics
from kshare_share_coordinator.ownership import Lease, Ownership
from kshare_share_coordinator.settings import ShareCoordinatorSettings
from kshare_share_coordinator.state_log.port import Found
from kshare_share_coordinator.state_log.rows import StateRows, prefix_of
from kshare_share_coordinator.state_log.state_partition import StatePartition, Surroundings
from kshare_upstream.fenced_log.claim import INCARNATION_LENGTH, Claim
from kshare_upstream.fenced_log.owner import FencedLog
from kshare_upstream.partition_log import PartitionLog
from kshare_upstream.port import OpenedUpstream, UpstreamPartitionName
from kshare_upstream.shared_produce import SharedProduce
from kshare_upstream.topics import MAX_BATCH_BYTES

STATE_BYTES_LIMIT = 2 * 1024 * 1024 * 1024
"""Memory of all rows; beyond it no further share-partition is initialized here."""
REPORTED_CORRUPT_SHARE_PARTITIONS_LIMIT = 100
RESIGN_TIMEOUT_S = 0.5
READS = "state-reads"
"""The purpose of reads: those of a whole log take longer than a write may wait."""

log = logging.getLogger(__name__)


class Registration(Lease, Protocol):
    """The part of CatalogFollower that this engine uses."""

    @property
    def node_epoch(self) -> int: ...

    def register_again(self) -> None: ...


class UpstreamStates:
    """A StateLog and a StateEngine over `upstream`; `kind` is FencedLog, but in tests."""

    keeps_data_here = False

    def __init__(
        self,
        *,
        upstream: OpenedUpstream,
        environment: Environment,
        follower: Registration,
        settings: ShareCoordinatorSettings,
        metrics: StateMetrics,
        kind: type[FencedLog] = FencedLog,
    ) -> None:
        self.ownership = Ownership(
            node_id=settings.node_id,
            lease=follower,
            identity=IdentityInMemory(),
            now=asyncio.get_running_loop().time,
        )
        self._upstream = upstream
        self._produce = SharedProduce(upstream, timeout_ms=settings.upstream_timeout_ms)
        self._now_ms = environment.clock.now_ms
        self._follower = follower
        self._settings = settings
        self._kind = kind
        self._incarnation = environment.random.getrandbits(8 * INCARNATION_LENGTH).to_bytes(INCARNATION_LENGTH, "big")
        self._partitions: dict[int, StatePartition] = {}
        self._ended: set[asyncio.Task[None]] = set()
        self._corrupt: dict[SharePartitionKey, str] = {}
        self._highest_epoch = 0
        self._void_batches = 0
        """Of state partitions that this node has lost."""
        self._surroundings = Surroundings(
            now_ms=self._now_ms,
            policy=settings.pruning_policy,
            metrics=metrics,
            updates_per_snapshot=settings.snapshot_update_records_per_snapshot,
            heard_of_catalog_at=lambda: follower.lease_renewed_at,
            is_full=self._is_full,
            report_epoch=self._report_epoch,
            report_corrupt=self.report_corrupt,
            check_corrupt=self._check_corrupt,
        )

    # StateLog

    @property
    def highest_epoch(self) -> int:
        return self._highest_epoch

    @property
    def corrupt_count(self) -> int:
        return len(self._corrupt)

    def gain(self, state_partition: int, owner_epoch: int) -> None:
        known = self._partitions.get(state_partition)
        if known is not None:
            if known.epoch == owner_epoch:
                return
            self.lose(state_partition)
        at = UpstreamPartitionName(self._settings.state_topic, state_partition)
        fenced_log = self._kind(
            self._upstream,
            PartitionLog(
                self._upstream,
                at,
                deadline_ms=self._settings.upstream_timeout_ms,
                read_purpose=READS,
                produce=self._produce,
            ),
            max_batch_bytes=MAX_BATCH_BYTES,
            now_ms=self._now_ms,
        )
        claim = Claim(owner_epoch, 0, self._settings.node_id, self._incarnation)
        gained = StatePartition(state_partition, fenced_log, claim, self._surroundings)
        self._partitions[state_partition] = gained
        gained.start()

    def lose(self, state_partition: int) -> None:
        lost = self._partitions.pop(state_partition, None)
        if lost is None:
            return
        self._void_batches += lost.void_batches
        lost.end(_not_owned(state_partition))
        for key in self._corrupt_of(state_partition):
            del self._corrupt[key]
        task = asyncio.get_running_loop().create_task(_outlive(lost), name=f"end-state-partition-{state_partition}")
        self._ended.add(task)
        task.add_done_callback(self._ended.discard)

    def refusal(self, state_partition: int) -> Result | None:
        partition = self._partitions.get(state_partition)
        return _not_owned(state_partition) if partition is None else partition.refusal

    def load(self, key: SharePartitionKey) -> Sequence[Record]:
        return self._rows(self.ownership.state_partition_of(key)).records(key)

    async def append(self, records: Sequence[Record]) -> None:
        partition = self._partitions[self.ownership.state_partition_of(records[0].key)]
        await partition.append(records)

    def share_partitions(self, state_partition: int, start: bytes, limit: int) -> tuple[list[Found], bytes | None]:
        return self._rows(state_partition).page(start, limit)

    def report_corrupt(self, key: SharePartitionKey, problem: str) -> None:
        is_here = self.ownership.state_partition_of(key) in self._partitions
        if is_here and len(self._corrupt) < REPORTED_CORRUPT_SHARE_PARTITIONS_LIMIT:
            self._corrupt.setdefault(key, f"corrupt record: {problem}")

    def _check_corrupt(self, state_partition: int) -> None:
        """Drops the problems of share-partitions whose states are deleted, or can be read now.

        A batch that was under way when the state partition was lost is confirmed later; `lose` has dropped them then.
        """
        partition = self._partitions.get(state_partition)
        if partition is None:
            return
        rows = partition.rows
        for key in self._corrupt_of(state_partition):
            prefix = prefix_of(key)
            if prefix not in rows or rows.found(prefix).problem is None:
                del self._corrupt[key]

    def _corrupt_of(self, state_partition: int) -> list[SharePartitionKey]:
        return [key for key in self._corrupt if self.ownership.state_partition_of(key) == state_partition]

    def problems(self) -> list[str]:
        found = [text for partition in self._partitions.values() for text in partition.problems()]
        if self._is_full():
            found.append(f"the states need more than {STATE_BYTES_LIMIT} bytes of memory; add share coordinators")
        return [*found, *self._corrupt.values()]

    # StateEngine

    def submit(self, operation: Operation) -> asyncio.Future[Result]:
        return self._partitions[self.ownership.state_partition_of(operation.key)].submit(operation)

    def key_refusal(self, key: SharePartitionKey) -> Result | None:
        return self.refusal(self.ownership.state_partition_of(key))

    def handlers(self) -> Sequence[object]:
        return [StatesElsewhere(self._settings.state_topic)]

    def on_view(self, old: CatalogView, new: CatalogView) -> None:
        node_epoch = self._follower.node_epoch
        owned = {
            number: max(node_epoch, new.state_partition_owner_epochs.get(number, 0))
            for number, owner in new.state_partition_owners.items()
            if owner == self._settings.node_id and number not in new.state_partition_moves
        }
        for number in [number for number in self._partitions if number not in owned]:
            self.lose(number)
        for number, epoch in owned.items():
            self.gain(number, epoch)

    def start(self) -> None:
        """The state partitions' work began with the first view."""

    async def stop(self) -> None:
        partitions = list(self._partitions.values())
        for partition in partitions:
            partition.end(_not_owned(partition.number))
        try:
            async with asyncio.timeout(RESIGN_TIMEOUT_S):
                await asyncio.gather(*[partition.resign() for partition in partitions], return_exceptions=True)
        except TimeoutError:
            log.warning(
                "some state logs could not be resigned within %s s; nobody has to wait for it", RESIGN_TIMEOUT_S
            )
        await asyncio.gather(*[partition.stop() for partition in partitions], *self._ended)

    async def close(self) -> None:
        await self._produce.close()
        await self._upstream.close()

    def read_metrics(self, readings: Readings) -> None:
        read_log_metrics(
            readings,
            self._surroundings.metrics,
            log_records=sum(partition.log_records for partition in self._partitions.values()),
            live_records=sum(partition.rows.record_count for partition in self._partitions.values()),
            void_batches=self._void_batches + sum(each.void_batches for each in self._partitions.values()),
        )

    def _rows(self, state_partition: int) -> StateRows:
        refusal = self.refusal(state_partition)
        if refusal is not None:
            raise StorageFailure(refusal.error_message)
        return self._partitions[state_partition].rows

    def _is_full(self) -> bool:
        return sum(partition.rows.size_bytes for partition in self._partitions.values()) >= STATE_BYTES_LIMIT

    def _report_epoch(self, epoch: int) -> None:
        self._highest_epoch = max(self._highest_epoch, epoch)
        self._follower.register_again()


class IdentityInMemory:
    """The cluster id and the number of state partitions of the first catalog that this node has seen.

    States in the existing cluster belong to no node, so a node id is not kept.
    """

    def __init__(self) -> None:
        self._cluster_id: str | None = None
        self._count: int | None = None

    def cluster_id(self) -> str | None:
        return self._cluster_id

    def write_cluster_id(self, cluster_id: str) -> None:
        self._cluster_id = cluster_id

    def state_partition_count(self) -> int | None:
        return self._count

    def write_state_partition_count(self, count: int) -> None:
        self._count = count

    def node_id(self) -> int | None:
        return None

    def write_node_id(self, node_id: int) -> None:
        """Nothing is on a disk of this node."""

    def filled_state_partitions(self) -> list[int]:
        return []


def _not_owned(state_partition: int) -> Result:
    return Result(ErrorCode.NOT_COORDINATOR, f"state partition {state_partition} does not belong to this node any more")


async def _outlive(lost: StatePartition) -> None:
    """Lets a batch under way be confirmed, and answers what waits."""
    await lost.drain()
    await lost.stop()
