"""What share-partitions need of dead letters, which `service` sends, and what dead letters need of share-partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from kshare_core.errors import KafkaError
from kshare_core.identifiers import SharePartitionKey
from kshare_leader.dead_letters.letters import OffsetRun
from kshare_leader.machine.share_partition import ArchivingRun
from kshare_leader.ports import TopicLog
from kshare_leader.share.start_offset import Truncation
from kshare_rpc.catalog import CatalogView


class DeadLetterSettings(NamedTuple):
    """A group's dead-letter configs: the topic name, empty for none, and whether records are copied to the topic."""

    topic_name: str
    copy_record: bool


class ArchivingPartition(Protocol):
    """The part of a served share-partition (`share.served_partition`) that dead letters use."""

    @property
    def key(self) -> SharePartitionKey: ...
    @property
    def state_epoch(self) -> int: ...
    @property
    def truncation(self) -> Truncation: ...
    @property
    def log(self) -> TopicLog: ...
    @property
    def start_offset(self) -> int: ...
    @property
    def error(self) -> KafkaError | None:
        """Why it is not served any more."""
        ...

    @property
    def dead_letter_settings(self) -> DeadLetterSettings: ...

    @property
    def is_at_rest(self) -> bool:
        """Whether it is loaded and idle: no waits, and no record is Acquired, Archiving or being stored."""
        ...

    @property
    def no_dead_letters_before_ms(self) -> int:
        """The loop time in milliseconds at which to continue after a refused write."""
        ...

    def archiving(self, limit: int) -> list[ArchivingRun]: ...

    def dead_letters_done(self, runs: Sequence[OffsetRun], *, stored_in: str = "") -> None:
        """Archives runs whose dead letters are stored in topic `stored_in`, or were given up (empty)."""
        ...

    async def is_state_replaced(self) -> bool:
        """Whether the stored state has another state epoch or truncation than the served one; raises KafkaError."""
        ...

    def drop(self, error: KafkaError) -> None: ...

    def unload_if_unused(self) -> None:
        """Drops it if it is idle and no session uses it."""
        ...


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

    def found_archiving(self, key: SharePartitionKey) -> None:
        """The stored state of a share-partition of this leader has Archiving records, although no member fetches."""
        ...

    def on_view(self, old: CatalogView, new: CatalogView) -> None: ...

    async def stop(self) -> None: ...

    def problems(self) -> list[str]: ...
