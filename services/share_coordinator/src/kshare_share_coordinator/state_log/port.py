"""Where states are kept, as the machines and the node see it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import NamedTuple, Protocol

from kshare_core.identifiers import SharePartitionKey
from kshare_rpc.catalog import CatalogView
from kshare_servicekit.metric_families import Readings
from kshare_share_coordinator.machine.operations import Operation, Result
from kshare_share_coordinator.machine.share_group_offset import Record
from kshare_share_coordinator.ownership import Ownership


class Found(NamedTuple):
    """A stored share-partition: its records, or their problem."""

    key: SharePartitionKey | None
    """None if not even the key can be read."""
    records: Sequence[Record]
    problem: str | None


class StateLog(Protocol):
    """The records of share-partitions, in state partitions that this node owns or not."""

    @property
    def highest_epoch(self) -> int:
        """The highest epoch in which an owner wrote, as far as this node has read; 0 if none is known."""
        ...

    def gain(self, state_partition: int, owner_epoch: int) -> None:
        """This node owns the state partition from this epoch on. Until `refusal` is None nothing may be loaded."""
        ...

    def lose(self, state_partition: int) -> None:
        """Another node owns the state partition, or none."""
        ...

    def refusal(self, state_partition: int) -> Result | None:
        """Why the state partition can be neither read nor written now; None if it can."""
        ...

    def load(self, key: SharePartitionKey) -> Sequence[Record]:
        """All records of a share-partition that are durable, in order; StorageFailure or CorruptRecord."""
        ...

    def append(self, records: Sequence[Record]) -> Awaitable[None] | None:
        """Makes records of one state partition durable in one atomic write, at once or when it is awaited.

        StorageFailure or KafkaError: the records are not durable, or it is unknown whether they are. Then the state
        partition is refused until it is known.
        """
        ...

    def share_partitions(self, state_partition: int, start: bytes, limit: int) -> tuple[Sequence[Found], bytes | None]:
        """Share-partitions from a position on, at least one if any exists, and the position from which to continue.

        Ends with the share-partition that contains record number `limit`; b"" is the first position. StorageFailure.
        """
        ...

    def report_corrupt(self, key: SharePartitionKey, problem: str) -> None:
        """Records a problem of a share-partition for the health check."""
        ...

    def problems(self) -> list[str]:
        """Problems for the health check."""
        ...


class StateEngine(StateLog, Protocol):
    """A state log, the machines over it, and the services that depend on where states are kept."""

    @property
    def ownership(self) -> Ownership: ...

    @property
    def keeps_data_here(self) -> bool:
        """Whether states are on this node's disk, so that they wait for it while it is away."""
        ...

    @property
    def corrupt_count(self) -> int:
        """How many share-partitions are known to have a corrupt record."""
        ...

    def submit(self, operation: Operation) -> asyncio.Future[Result]:
        """The result, once its records are durable; for a share-partition that is not refused."""
        ...

    def key_refusal(self, key: SharePartitionKey) -> Result | None:
        """The refusal of the share-partition's state partition, which this node owns."""
        ...

    def handlers(self) -> Sequence[object]:
        """The handlers of RPCs that not every engine answers, or not in the same way."""
        ...

    def on_view(self, old: CatalogView, new: CatalogView) -> None:
        """Applies a view; called before the view is the node's."""
        ...

    def start(self) -> None:
        """Starts the work in the background; called once the first view has arrived."""
        ...

    async def stop(self) -> None:
        """Ends what is under way; nothing is submitted any more, and the node is still registered."""
        ...

    async def close(self) -> None:
        """Closes the store or the connections; the last call."""
        ...

    def read_metrics(self, readings: Readings) -> None:
        """The engine's own metrics."""
        ...
