"""The bursts of requests that one sender sends, drawn when it sends them or before the attack.

To draw a request costs about as much as to send it. A sender that draws during the attack keeps a processor busy that
the cluster would have on a machine of its own.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Sequence

from support.hostile.kafka_messages import Vocabulary
from support.hostile.requests import HostileRequest, RequestSource

BURST_LIMIT = 12

Burst = list[HostileRequest]
"""At least one request; only the last one may end its stream or be unreadable."""


class Bursts:
    """An endless supply of bursts; the same seed has the same ones, whether they were drawn ahead or not."""

    def __init__(
        self,
        source: random.Random,
        vocabulary: Vocabulary,
        api_keys: Collection[int] = (),
        corpus: Sequence[bytes] = (),
        first_id: int = 1,
    ) -> None:
        """`api_keys` and `corpus`: see RequestSource. `first_id`: the correlation id of the first request."""
        self._source = source
        self._requests = RequestSource(source, vocabulary, api_keys, corpus)
        self._ahead: deque[Burst] = deque()
        self._next_id = first_id

    def draw_ahead(self) -> int:
        """Draws one more burst and keeps it; the number of its requests."""
        self._ahead.append(self._drawn())
        return len(self._ahead[-1])

    def again(self, correlation_id: int, limit: int) -> HostileRequest | None:
        """The request with this id among the next `limit` ones; for a supply that was just made."""
        drawn = 0
        while drawn < limit:
            burst = self._drawn()
            drawn += len(burst)
            for request in burst:
                if request.correlation_id == correlation_id:
                    return request
        return None

    def next_burst(self) -> Burst:
        return self._ahead.popleft() if self._ahead else self._drawn()

    def _drawn(self) -> Burst:
        burst: Burst = []
        for _ in range(self._source.choice((1, 1, 2, 4, BURST_LIMIT))):
            burst.append(self._requests.next_request(self._next_id))
            self._next_id = self._next_id % (2**31 - 1) + 1
            if burst[-1].ends_stream or not burst[-1].is_readable:
                break
        return burst
