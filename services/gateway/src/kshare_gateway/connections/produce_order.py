"""The order of a connection's Produce requests for a partition, kept when a request is delayed or retried.

Requests of a connection are sent to leaders as they arrive, several at a time. During a reassignment a request may wait
or be retried (`records.reassignment`). Later requests must not overtake it: an idempotent producer would get
OUT_OF_ORDER_SEQUENCE_NUMBER for a batch although all before it were stored, and would fail for good.

So a held request is sent once all before it are answered, and no request is sent while an earlier one is held. A
request that was already in flight when an earlier one was held is retried if it was out of order.

A partition may also get a new leader, or its leader a new process, while a request is in flight to the old one. The new
one may not know the producer yet, and takes any sequence from it, as Kafka's does. So a request is held while an
earlier one is in flight to another leader, or to the same one in another leader epoch or on a stream that was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kshare_core.identifiers import TopicPartition

_Lane = tuple[int, TopicPartition]
"""A connection and a partition."""


class LeaderPlace(NamedTuple):
    """The leader to which a partition's batches are sent, by one version of the catalog, and the stream to it."""

    address: str
    leader_epoch: int
    streams_lost: int
    """`Channel.streams_lost`: a later stream may deliver a request though one on this stream was lost."""


class ProduceOrder:
    """All Produce requests in flight in a gateway."""

    def __init__(self) -> None:
        self._lanes: dict[_Lane, dict[ProduceTurn, None]] = {}

    def begin(self, connection_id: int, keys: Iterable[TopicPartition]) -> ProduceTurn:
        """The turn of a new request; the caller must end it."""
        turn = ProduceTurn(self, [(connection_id, key) for key in keys])
        for lane in turn.lanes:
            self._lanes.setdefault(lane, {})[turn] = None
        return turn

    def before(self, turn: ProduceTurn) -> list[ProduceTurn]:
        """Earlier turns for one of its partitions."""
        found: dict[ProduceTurn, None] = {}
        for lane in turn.lanes:
            for other in self._lanes[lane]:
                if other is turn:
                    break
                found[other] = None
        return list(found)

    def after(self, turn: ProduceTurn) -> list[ProduceTurn]:
        """Later turns for one of its partitions."""
        found: dict[ProduceTurn, None] = {}
        for lane in turn.lanes:
            turns = list(self._lanes[lane])
            found.update(dict.fromkeys(turns[turns.index(turn) + 1 :]))
        return list(found)

    def ended(self, turn: ProduceTurn) -> None:
        for lane in turn.lanes:
            del self._lanes[lane][turn]
            if not self._lanes[lane]:
                del self._lanes[lane]


class ProduceTurn:
    """One request's place among those of its connection."""

    __slots__ = ("_done", "_order", "is_held", "is_overtaken", "lanes", "sent_to")

    def __init__(self, order: ProduceOrder, lanes: list[_Lane]) -> None:
        self._order = order
        self._done: asyncio.Future[None] | None = None
        self.lanes = lanes
        self.sent_to: dict[TopicPartition, LeaderPlace] = {}
        """Where the request was sent last, by partition."""
        self.is_held = False
        self.is_overtaken = False
        """An earlier request was held while this one was in flight, so this one may have arrived first."""

    def hold(self) -> None:
        """Marks the request as delayed, or to be retried."""
        if not self.is_held:
            self.is_held = True
            for other in self._order.after(self):
                other.is_overtaken = True

    async def wait(self, place_of: Callable[[TopicPartition], LeaderPlace]) -> None:
        """Returns when the request may be sent; at once if no request is held or was sent to another leader.

        `place_of` says where a partition's batches are sent now.
        """
        while True:
            waited_for = [
                other
                for other in self._order.before(self)
                if self.is_held or other.is_held or self._is_elsewhere(other, place_of)
            ]
            if not waited_for:
                self.is_overtaken = False
                return
            self.hold()
            await asyncio.wait([waited_for[-1].done()])

    def _is_elsewhere(self, other: ProduceTurn, place_of: Callable[[TopicPartition], LeaderPlace]) -> bool:
        return any(key in other.sent_to and other.sent_to[key] != place_of(key) for _, key in self.lanes)

    async def is_first(self) -> None:
        """Returns when all earlier requests are answered."""
        while before := self._order.before(self):
            await asyncio.wait([before[-1].done()])

    def done(self) -> asyncio.Future[None]:
        """Done when the request is answered."""
        if self._done is None:
            self._done = asyncio.get_running_loop().create_future()
        return self._done

    def end(self) -> None:
        """Marks the request as answered."""
        self._order.ended(self)
        if self._done is not None:
            self._done.set_result(None)
