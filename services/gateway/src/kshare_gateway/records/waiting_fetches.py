"""The calls of Fetches that wait at leaders and share coordinators, by client connection.

Such a call names its connection, and the next Fetch of the connection ends it (`kshare_rpc.fetch_waits`). When the
connection closes, there is no next one: the gateway ends the calls then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.network import Method


class FetchPlace(NamedTuple):
    """A role that answers Fetches, and its method for that."""

    address: str
    method: Method[leader_pb2.FetchRequest, leader_pb2.FetchResponse]


class WaitingFetches:
    """The waiting calls of one gateway; `incarnation` is different for each gateway."""

    def __init__(self, incarnation: str) -> None:
        self._incarnation = incarnation
        self._places: dict[int, list[FetchPlace]] = {}

    def waiter(self, connection_id: int) -> str:
        """The name of a connection in all calls of its Fetches."""
        return f"{self._incarnation}-{connection_id}"

    def places(self, connection_id: int) -> list[FetchPlace]:
        """Where calls of the connection wait."""
        return list(dict.fromkeys(self._places.get(connection_id, ())))

    @contextmanager
    def waiting(self, connection_id: int, place: FetchPlace) -> Iterator[None]:
        """Counts a call that waits."""
        places = self._places.setdefault(connection_id, [])
        places.append(place)
        try:
            yield
        finally:
            places.remove(place)
            if not places:
                del self._places[connection_id]
