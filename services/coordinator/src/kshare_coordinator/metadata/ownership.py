"""Partitions that a coordinator owns under one lease, and writes fenced by that ownership.

The fence of an owned partition is the create revision of its owner key. A coordinator that loses the key (its lease
ended, or it gave the partition back) and gains it again has another create revision. Every write of rows compares it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kshare_coordinator.metadata.etcd.port import (
    Compare,
    Delete,
    Etcd,
    EtcdRefused,
    EtcdUnavailable,
    Put,
    Target,
    TransactionAnswer,
)
from kshare_coordinator.metadata.layout import Layout
from kshare_coordinator.metadata.partition_rows import PartitionRows
from kshare_coordinator.metadata.port import OwnershipLost
from kshare_core.errors import StorageFailure

RETRY_INTERVAL_MS = 100


@dataclass(slots=True)
class OwnedPartition:
    """An owned partition; `is_answering` is False while it is being given back."""

    create_revision: int
    rows: PartitionRows
    is_answering: bool = True


class Ownership:
    """The owned partitions; see the module's text. `lose` ends the lease and all ownership, for a given reason."""

    def __init__(self, etcd: Etcd, layout: Layout, lease_ms: int, lose: Callable[[str], None]) -> None:
        self._etcd = etcd
        self._layout = layout
        self._lease_s = lease_ms / 1000
        self._lose = lose
        self.partitions: dict[int, OwnedPartition] = {}

    def fence(self, partition: int) -> Compare:
        """A compare that holds while the partition is owned without a break; OwnershipLost if it is not owned.

        Work that consists of several writes takes the fence once, at its start.
        """
        owned = self.partitions.get(partition)
        if owned is None:
            raise OwnershipLost(f"partition {partition} of the metadata belongs to another coordinator")
        return Compare(self._layout.owner(partition), Target.CREATE_REVISION, owned.create_revision)

    async def transact(
        self, compares: Sequence[Compare], then: Sequence[Put | Delete], otherwise: Sequence[bytes] = ()
    ) -> TransactionAnswer:
        """Retries an idempotent transaction until it is answered, for the length of a lease.

        StorageFailure: it had no effect. OwnershipLost: its outcome is unknown, and all ownership has ended.
        """
        is_unknown = False
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._lease_s
        while True:
            try:
                return await self._etcd.transact(compares, then, otherwise)
            except EtcdUnavailable as error:
                is_unknown = True
                text = str(error)
            except EtcdRefused as error:
                if not is_unknown:
                    raise StorageFailure(str(error)) from error
                text = str(error)
            if loop.time() >= give_up_at:
                self._lose(f"the outcome of a write is unknown: {text}")
                raise OwnershipLost("the outcome of the write is unknown")
            await asyncio.sleep(RETRY_INTERVAL_MS / 1000)
