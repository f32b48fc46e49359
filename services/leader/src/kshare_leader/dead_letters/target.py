"""The port through which dead letters are stored; each engine has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kshare_core.identifiers import SharePartitionKey
from kshare_leader.dead_letters.destination import Destination, Refused, ToBeCreated, Unreachable
from kshare_leader.dead_letters.letters import LetterBatch, OffsetRun, SourceRecords
from kshare_leader.dead_letters.port import ArchivingPartition
from kshare_leader.machine.share_partition import ArchivingRun


class CannotStore(Exception):
    """A round failed and is retried; the text says why."""


class DeadLetterTarget(Protocol):
    """Where dead letters go. A share-partition has one call under way; every call may raise CannotStore."""

    async def find(self, key: SharePartitionKey, topic_name: str) -> Destination | Refused | ToBeCreated | Unreachable:
        """The destination of a share-partition's dead letters; `topic_name` is that of its group, or empty."""
        ...

    async def create(self, topic_name: str) -> None:
        """Creates a dead-letter topic; returns when this leader's catalog has it."""
        ...

    async def source_records(
        self, served: ArchivingPartition, runs: Sequence[ArchivingRun], limit_bytes: int
    ) -> tuple[Sequence[ArchivingRun], SourceRecords]:
        """The records that are copied, and the runs that they are enough for, beginning with the first.

        `limit_bytes` is that of the batch of dead letters.
        """
        ...

    async def append(
        self, served: ArchivingPartition, destination: Destination, letters: LetterBatch
    ) -> list[OffsetRun]:
        """Appends a batch, or nothing if some of it is there already; returns the offsets of it that are there now.

        KafkaError FENCED_STATE_EPOCH: the share-partition has a newer state than this leader.
        """
        ...

    def dropped(self, key: SharePartitionKey) -> None:
        """The share-partition is no longer served."""
        ...

    async def close(self) -> None: ...
