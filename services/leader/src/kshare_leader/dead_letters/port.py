"""What share-partitions need of dead letters: `service` sends them, `held_back` keeps the records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kshare_core.identifiers import SharePartitionKey
from kshare_leader.dead_letters.service import ArchivingPartition
from kshare_rpc.catalog import CatalogView


class DeadLetterSender(Protocol):
    """Takes care of the Archiving records of the share-partitions that this leader serves."""

    def attach(
        self,
        *,
        find: Callable[[SharePartitionKey], ArchivingPartition | None],
        load: Callable[[SharePartitionKey], ArchivingPartition],
    ) -> None:
        """Sets the functions that find and load share-partitions; `load` raises KafkaError if it cannot."""
        ...

    def before_archiving(self, key: SharePartitionKey) -> None:
        """Remembers a share-partition before its first write with Archiving records; raises StorageFailure."""
        ...

    def wake(self, served: ArchivingPartition) -> None:
        """The share-partition may have Archiving records whose dead letters are due."""
        ...

    def dropped(self, served: ArchivingPartition, *, was_at_rest: bool) -> None:
        """Handles a share-partition that is no longer served."""
        ...

    def on_view(self, old: CatalogView, new: CatalogView) -> None: ...

    async def stop(self) -> None: ...

    def problems(self) -> list[str]: ...
