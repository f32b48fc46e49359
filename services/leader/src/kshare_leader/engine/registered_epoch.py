"""The highest node epoch in which a leader was registered: it is stored, and reported at each registration.

The leader epochs of states come from node epochs. If the coordinator's store is an older copy, its counter may be below
an epoch that states have although no batch was appended in it, and share coordinators would refuse every read of these
states. The coordinator therefore gives a leader an epoch above the one that it reports.

The epoch is durable before the leader serves in it.
"""

from __future__ import annotations

from collections.abc import Callable

from kshare_core.errors import StorageFailure
from kshare_leader.log import keys
from kshare_runtime.checksummed_rows import CorruptRow
from kshare_runtime.ports import KeyValueStore, Write

_EPOCH_BYTES = 8


class RegisteredEpoch:
    """The epoch of one store."""

    def __init__(self, store: KeyValueStore, *, report: Callable[[str], None]) -> None:
        self._store = store
        self._report = report
        self._stored: int | None = None
        self._failure = ""

    def highest(self) -> int:
        """The highest epoch that was noted; 0 where there is none, or its row is damaged. StorageFailure."""
        if self._stored is None:
            try:
                found = self._store.get(keys.META, keys.NODE_EPOCH_KEY)
            except CorruptRow as problem:
                self._report(f"the highest epoch of this leader is not known: {problem}")
                found = None
            self._stored = 0 if found is None else int.from_bytes(found, "big")
        return self._stored

    def note(self, node_epoch: int) -> None:
        """Stores the epoch if it is higher; a StorageFailure is reported, and the next call tries again."""
        try:
            if node_epoch <= self.highest():
                return
            encoded = node_epoch.to_bytes(_EPOCH_BYTES, "big")
            self._store.write([Write(keys.META, keys.NODE_EPOCH_KEY, encoded)])
        except StorageFailure as failure:
            if str(failure) != self._failure:
                self._report(f"epoch {node_epoch} of this leader cannot be stored: {failure}")
            self._failure = str(failure)
            return
        self._stored, self._failure = node_epoch, ""
