"""The leader epoch history of one log: the durable rows, and the current epoch in memory.

A leader epoch gets its row in the same write as its first batch, so the rows always match the batches. The current
epoch has an entry in memory from the start, at the log's end; an epoch without appends leaves no row. Rows of epochs
that wrote only below the log start offset are removed when it moves. A log that an older version wrote has batches
without rows; their epochs are read from the batches' headers and stored with the next append.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from kshare_core.leader_epochs import EpochEntry, encode_leader_epochs
from kshare_leader.log import keys
from kshare_runtime.ports import Write


class LeaderEpochWentBack(Exception):
    """The log has batches of a newer leader epoch than the given one."""


class LeaderEpochHistory:
    """The history of one log. `stored` are the entries with rows, `found` the later entries found in batch headers."""

    def __init__(self, stored: Sequence[EpochEntry], found: Sequence[EpochEntry] = ()) -> None:
        self._entries = [*stored, *found]
        self._stored_count = len(stored)
        self._leads_in_memory = False
        """Whether the last entry is of the current epoch and has no batch yet."""
        self._encoded: bytes | None = None

    @property
    def entries(self) -> Sequence[EpochEntry]:
        """The entries, oldest first; the last one is of the current epoch. Not to be changed."""
        return self._entries

    def durable(self) -> Sequence[EpochEntry]:
        """The entries of epochs that have batches."""
        return self._entries[:-1] if self._leads_in_memory else self._entries

    def encoded(self) -> bytes:
        """The newest entries (`kshare_core.leader_epochs`)."""
        if self._encoded is None:
            self._encoded = encode_leader_epochs(self._entries)
        return self._encoded

    def lead(self, leader_epoch: int, end_offset: int) -> None:
        """Sets the current epoch of a log that ends at `end_offset`; LeaderEpochWentBack."""
        durable = self.durable()
        newest = durable[-1].leader_epoch if durable else -1
        if leader_epoch < newest:
            text = f"leader epoch {leader_epoch} is older than leader epoch {newest} of its newest batches"
            raise LeaderEpochWentBack(text)
        self._entries = list(durable)
        self._leads_in_memory = leader_epoch > newest
        if self._leads_in_memory:
            self._entries.append(EpochEntry(leader_epoch, end_offset))
        self._encoded = None

    @property
    def is_stored(self) -> bool:
        return self._stored_count == len(self._entries)

    def writes(self, prefix: bytes) -> Iterator[Write]:
        """The rows that must become durable with the next batch; `appended` afterwards."""
        for leader_epoch, start_offset in self._entries[self._stored_count :]:
            yield Write(keys.LEADER_EPOCHS, keys.long_key(prefix, leader_epoch), keys.offset_value(start_offset))

    def appended(self) -> None:
        """Called when a batch of the current epoch is durable, with `writes`."""
        self._stored_count = len(self._entries)
        self._leads_in_memory = False

    def below(self, start_offset: int) -> list[EpochEntry]:
        """The oldest stored entries that are useless for a log that starts at `start_offset`.

        The last one that has a row stays: it is the newest epoch that this log was written in.
        """
        stored = self._entries[: self._stored_count]
        return [entry for entry, after in pairwise(stored) if after.start_offset <= start_offset]

    def removals(self, start_offset: int, prefix: bytes) -> list[Write]:
        """The writes that belong to a new log start; `forget_below` afterwards."""
        return [
            Write(keys.LEADER_EPOCHS, keys.long_key(prefix, entry.leader_epoch), None)
            for entry in self.below(start_offset)
        ]

    def forget_below(self, start_offset: int) -> None:
        gone = len(self.below(start_offset))
        if gone:
            del self._entries[:gone]
            self._stored_count -= gone
            self._encoded = None
