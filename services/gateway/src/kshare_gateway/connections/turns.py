"""Which connection starts its next request, when clients have sent more than a gateway can start at once.

Without an order, every connection with data would start requests in each turn of the event loop. A client that waits
for each answer would then wait, in each turn that its request needs, for what all others have pipelined. The order is
that of Linux's fair scheduler: a connection is charged for the requests that it starts, and the one with the lowest
charge is next. A client that sends little is served before those that flood, and those that flood share what is left.

Requests start up to REQUESTS_PER_TURN in one turn of the loop. The others wait, while the loop serves sockets and the
requests that have started. A connection that was quiet has a credit of CREDIT_REQUESTS and no more, so it cannot save
up for a flood. A new connection comes after those that are served. Otherwise a client with a new connection for each
request would always be first.

While connections wait for a turn, each has at most CROWDED_LIMIT requests under way, so that what floods have started
does not queue up in the other roles either. An Apache Kafka broker works on one request of a connection at a time.

Counts decide, not time, so the same requests start in the same order whenever a history is replayed.
"""

from __future__ import annotations

import asyncio
import heapq
from itertools import count
from typing import Protocol

REQUESTS_PER_TURN = 4
"""Less than a millisecond of work. A request needs a turn for each answer of another role, and waits for each turn."""
CREDIT_REQUESTS = 8.0
CROWDED_LIMIT = 2
ELEMENTS_OF_A_REQUEST = 100
"""Elements of a long request that are charged like a request; each costs a few microseconds."""


class Starter(Protocol):
    """A connection whose requests take turns."""

    charge: float
    """What it has been charged, in requests. Only differences between connections count."""
    waits_for_turn: bool

    def take_turn(self) -> None:
        """Starts a request, and others while `charged` allows it."""


class Turns:
    """The turns of the connections of one event loop."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Starter]] = []
        self._numbers = count()
        self._served = 0.0
        """The highest charge at which a connection was served while no lower one waited."""
        self._left = REQUESTS_PER_TURN
        self._is_turn = False

    @property
    def is_crowded(self) -> bool:
        return bool(self._waiting)

    def admit(self, starter: Starter) -> None:
        """A new connection begins with a charge above that of those that are served."""
        starter.charge = self._served + 1

    def may_start(self, starter: Starter) -> bool:
        """Whether a connection with a whole request may start it now. If not, `take_turn` is called when it may."""
        if starter.waits_for_turn:
            return False
        if starter.charge < self._served - CREDIT_REQUESTS:
            starter.charge = self._served - CREDIT_REQUESTS
        if not self._is_turn:
            self._begin()
        if self._is_next(starter):
            return True
        self.wait(starter)
        return False

    def charged(self, starter: Starter) -> bool:
        """Charges for a request that was started; whether the connection may start another in this turn."""
        starter.charge += 1
        self._left -= 1
        return self._is_next(starter)

    def wait(self, starter: Starter) -> None:
        """`take_turn` is called in a later turn, after those with a lower charge."""
        starter.waits_for_turn = True
        heapq.heappush(self._waiting, (starter.charge, next(self._numbers), starter))

    def _is_next(self, starter: Starter) -> bool:
        if self._waiting:
            return starter.charge < self._waiting[0][0]
        if starter.charge > self._served:
            self._served = starter.charge
        return self._left > 0

    def _begin(self) -> None:
        self._is_turn = True
        self._left = REQUESTS_PER_TURN
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_turn = False
        if not self._waiting:
            return
        self._begin()
        while self._waiting and self._left > 0:
            charge, _, starter = heapq.heappop(self._waiting)
            self._served = max(self._served, charge)
            starter.waits_for_turn = False
            starter.take_turn()
