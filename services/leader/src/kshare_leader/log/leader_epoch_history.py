"""The leader epoch history of one log, as it is durable and with the epoch that leads now.

A leader epoch gets its row in the same write as its first batch, so the rows are always those of the batches. The epoch
that leads now has an entry in memory from the start, at the log's end; where it never appends, nothing remains of it.
Rows of epochs that wrote only below the log start offset are removed when it moves. A log that an older version wrote
has batches without rows; their epochs are read from the batches' headers, and stored with the next append.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from kshare_core.leader_epochs import EpochEntry, encode_leader_epochs
from kshare_leader.log import keys
from kshare_runtime.ports import Write


class LeaderEpochWentBack(Exception):
    """The log has batches of a newer leader epoch than the one that is to lead it."""


class LeaderEpochHistory:
    """See the module's text. `stored` are the entries that have rows, `found` those that batches tell beyond them."""

    def __init__(self, stored: Sequence[EpochEntry], found: Sequence[EpochEntry] = ()) -> None:
        self._entries = [*stored, *found]
        self._stored_count = len(stored)
        self._leads_in_memory = False
        """Whether the last entry is of the epoch that leads now, and has no batch yet."""
        self._encoded: bytes | None = None

    @property
    def entries(self) -> Sequence[EpochEntry]:
        """Oldest first; the last one is of the epoch that leads now. Not to be changed."""
        return self._entries

    def durable(self) -> Sequence[EpochEntry]:
        """The entries of epochs that wrote something."""
        return self._entries[:-1] if self._leads_in_memory else self._entries

    def encoded(self) -> bytes:
        """The newest entries (`kshare_core.leader_epochs`)."""
        if self._encoded is None:
            self._encoded = encode_leader_epochs(self._entries)
        return self._encoded

    def lead(self, leader_epoch: int, end_offset: int) -> None:
        """`leader_epoch` leads a log that ends at `end_offset`; LeaderEpochWentBack."""
        durable = self.durable()
        newest = durable[-1].leader_epoch if durable else -1
        if leader_epoch < newest:
            text = f"leader epoch {leader_epoch} is to lead it, and it has batches of leader epoch {newest}"
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
        """A batch of the epoch that leads is durable, with `writes`."""
        self._stored_count = len(self._entries)
        self._leads_in_memory = False

    def below(self, start_offset: int) -> list[EpochEntry]:
        """The oldest entries that have rows, as far as they tell nothing about a log that starts at `start_offset`.

        The last one that has a row stays: it is the newest epoch that this log was written in.
        """
        stored = self._entries[: self._stored_count]
        return [entry for entry, after in pairwise(stored) if after.start_offset <= start_offset]

    def removals(self, start_offset: int, prefix: bytes) -> list[Write]:
        """What must be written when the log's start moves; `forget_below` afterwards."""
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
