"""What a coordinator owns under one lease, and writes that have an effect only as long as it does.

Each owned partition has the create revision of its owner's key: whoever loses the key, because the lease ended or it
gave it back, and even gets it again, has another one. Every write of rows compares it.
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
    """`is_answering` False: it is being given back."""

    create_revision: int
    rows: PartitionRows
    is_answering: bool = True


class Ownership:
    """See the module's text. `lose` ends the lease and everything that is owned, for the reason that it is told."""

    def __init__(self, etcd: Etcd, layout: Layout, lease_ms: int, lose: Callable[[str], None]) -> None:
        self._etcd = etcd
        self._layout = layout
        self._lease_s = lease_ms / 1000
        self._lose = lose
        self.partitions: dict[int, OwnedPartition] = {}

    def fence(self, partition: int) -> Compare:
        """True as long as it is owned without a break; OwnershipLost where it is known not to be.

        What consists of several writes takes it once, at its beginning.
        """
        owned = self.partitions.get(partition)
        if owned is None:
            raise OwnershipLost(f"partition {partition} of the metadata belongs to another coordinator")
        return Compare(self._layout.owner(partition), Target.CREATE_REVISION, owned.create_revision)

    async def transact(
        self, compares: Sequence[Compare], then: Sequence[Put | Delete], otherwise: Sequence[bytes] = ()
    ) -> TransactionAnswer:
        """The answer, for a transaction that may be done several times: it is repeated until there is one.

        StorageFailure: it has no effect. OwnershipLost: nobody knows, and after this time nothing is owned any more.
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
                self._lose(f"it is not known whether a write took effect: {text}")
                raise OwnershipLost("it is not known whether the write took effect")
            await asyncio.sleep(RETRY_INTERVAL_MS / 1000)
