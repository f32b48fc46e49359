"""The responses of leaders to the calls of a share session, before they are one response to the client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kshare_core.identifiers import TopicPartition
from kshare_gateway.connections.request_memory import MemoryAccount
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_wire.messages import Buffer

AcquiredRecords = leader_pb2.ShareFetchResponse.AcquiredRecords


class Keeping(NamedTuple):
    """The counted bytes of a kept response, and the timer at which it is too old to be delivered."""

    account: MemoryAccount | None
    size_bytes: int
    timer: asyncio.TimerHandle


@dataclass(slots=True)
class PartitionAnswer:
    """One partition's entry in the response; `records` are whole batches in order."""

    key: TopicPartition
    error_code: int = 0
    error_message: str | None = None
    acknowledge_error_code: int = 0
    acknowledge_error_message: str | None = None
    acquired: Sequence[AcquiredRecords] = ()
    records: list[Buffer] = field(default_factory=list)
    is_acknowledged: bool = False
    is_acquirable: bool = False
    """The leader looked for records."""

    @property
    def says_something(self) -> bool:
        return bool(self.acquired or self.error_code or self.is_acknowledged)


@dataclass(slots=True)
class LeaderAnswer:
    """One leader's response. `unavailable`: the call failed, and the partitions have the error.

    `lock_timeout_ms` is how long the locks of its records last, from the time of delivery.
    """

    address: str
    partitions: list[PartitionAnswer]
    lock_timeout_ms: int = 0
    unavailable: bool = False
    fetch_number: int = 0
    """Number of the fetch that it answers; acknowledgements have none."""
    arrived_at: float = 0.0
    """The event loop's time in seconds."""
    has_no_room: bool = False
    """The leader serves as many share-partitions as it may."""
    view: CatalogView | None = None
    """The catalog when the leader was asked; None where nothing was acquired."""
    kept: Keeping | None = None
    """Set while its records count as kept."""

    @property
    def has_records(self) -> bool:
        return any(partition.acquired for partition in self.partitions)

    @property
    def record_count(self) -> int:
        """Of acquired records."""
        runs = [run for partition in self.partitions for run in partition.acquired]
        return sum([run.last_offset - run.first_offset + 1 for run in runs])

    @property
    def records_bytes(self) -> int:
        return sum([sum(map(len, partition.records)) for partition in self.partitions])

    @property
    def has_errors(self) -> bool:
        return any(partition.error_code for partition in self.partitions)
