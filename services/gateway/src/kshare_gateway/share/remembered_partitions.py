"""What the leaders remember of a share session, so that a ShareFetch need not name all of its partitions.

A leader that remembers the partitions of a fetch says so in its response. Later fetches of the session at this leader
name that fetch, and only the partitions with acknowledgements or cached batches. A fetch names all of its partitions
again when the session's partitions or their leaders have changed, when the leader does not remember them any more, and
when a partition is to be named in the response as soon as records may be acquired there (`ShareSession.unnamed`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kshare_core.identifiers import TopicPartition
from kshare_gateway.share.sessions import ShareSession
from kshare_rpc.catalog import CatalogView

Fetched = Sequence[TopicPartition] | Mapping[TopicPartition, None]
"""The partitions that a leader is asked for, all of them."""


@dataclass(slots=True)
class Remembered:
    """The partitions that a leader remembers from a fetch, those that had records longest ago first.

    The leader tries its partitions in about this order, so the first ones are those whose cached batches to name.
    """

    fetch_number: int
    partitions: dict[TopicPartition, None]

    def had_records(self, key: TopicPartition) -> None:
        if key in self.partitions:
            del self.partitions[key]
            self.partitions[key] = None


@dataclass(slots=True)
class RememberedPartitions:
    """See the module docstring; by the leader's address."""

    plan_number: int = 0
    """How often `planned` was called."""
    _at: dict[str, Remembered] = field(default_factory=dict)
    _version: int = 0
    _view: CatalogView | None = None
    _addresses: Sequence[str] = ()

    def plan(self, session: ShareSession, view: CatalogView) -> dict[str, Fetched] | None:
        """All partitions of the session by leader; None while `planned` has to be told first."""
        if session.version != self._version or view is not self._view:
            return None
        found: dict[str, Fetched] = {}
        for address in self._rotated(session.rotation):
            remembered = self._at.get(address)
            if remembered is None:
                return None
            found[address] = remembered.partitions
        return found

    def _rotated(self, rotation: int) -> Iterator[str]:
        """With another leader first each time."""
        addresses = self._addresses
        start = rotation % len(addresses) if addresses else 0
        yield from addresses[start:]
        yield from addresses[:start]

    def planned(self, session: ShareSession, view: CatalogView, fetch: Mapping[str, Fetched]) -> None:
        """Notes where all partitions of the session are led; what leaders remember otherwise is of no use."""
        for address in list(self._at):
            if self._at[address].partitions.keys() != dict.fromkeys(fetch.get(address, ())).keys():
                del self._at[address]
        self._version, self._view, self._addresses = session.version, view, list(fetch)
        self.plan_number += 1

    def at(self, address: str) -> Remembered | None:
        return self._at.get(address)

    def remember(self, address: str, fetch_number: int, partitions: Fetched, plan_number: int) -> None:
        """Notes what a leader remembers, unless the partitions were planned again since its fetch began."""
        if plan_number != self.plan_number:
            return
        self._at[address] = Remembered(fetch_number, dict.fromkeys(partitions))

    def forget(self, address: str) -> None:
        self._at.pop(address, None)
