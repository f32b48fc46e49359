"""The back-off of share-partitions whose load was refused.

A client whose ShareFetch is answered with an error, or without records, fetches again at once, and that loads the
share-partition again. Without a pause the share coordinator would be asked every millisecond. The first refusal is
followed by RETRY_INTERVAL_MS, each further one by twice as much, up to RETRY_INTERVAL_MAX_MS. Fetches that come
meanwhile wait, as for any share-partition that is loading. A new leader epoch, or a load that succeeds, ends the
back-off.
"""

from __future__ import annotations

from typing import NamedTuple

from kshare_core.identifiers import SharePartitionKey
from kshare_leader.share.limits import REFUSED_LOADS_LIMIT, RETRY_INTERVAL_MAX_MS, RETRY_INTERVAL_MS


class _Refused(NamedTuple):
    leader_epoch: int
    times: int
    """Refusals in a row."""
    until_ms: int


class RefusedLoads:
    """Remembers the newest REFUSED_LOADS_LIMIT share-partitions; times are those of the event loop."""

    def __init__(self) -> None:
        self._refused: dict[SharePartitionKey, _Refused] = {}

    def pause_ms(self, key: SharePartitionKey, leader_epoch: int, now_ms: int) -> int:
        """How long to wait before the state is read; 0 unless a load was refused just now."""
        found = self._refused.get(key)
        if found is None or found.leader_epoch != leader_epoch:
            return 0
        return max(0, found.until_ms - now_ms)

    def refused(self, key: SharePartitionKey, leader_epoch: int, now_ms: int) -> None:
        before = self._refused.pop(key, None)
        is_in_row = (
            before is not None
            and before.leader_epoch == leader_epoch
            and now_ms - before.until_ms <= RETRY_INTERVAL_MAX_MS
        )
        count = before.times + 1 if before is not None and is_in_row else 1
        pause_ms = min(RETRY_INTERVAL_MS << min(count - 1, 10), RETRY_INTERVAL_MAX_MS)
        self._refused[key] = _Refused(leader_epoch, count, now_ms + pause_ms)
        if len(self._refused) > REFUSED_LOADS_LIMIT:
            del self._refused[next(iter(self._refused))]

    def loaded(self, key: SharePartitionKey) -> None:
        self._refused.pop(key, None)
