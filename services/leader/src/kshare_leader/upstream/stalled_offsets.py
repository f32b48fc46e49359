"""Offsets of an upstream log whose fetch failed or brought nothing, though the log has records there.

A batch of message format v0 or v1, a damaged one, or remote storage that does not answer may stop the readers of an
offset for good. Such an offset is fetched again after its back-off, if a reader demands it. The rest of the log is
fetched meanwhile. An offset is remembered until it was fetched: what is ahead of a reader is not demanded by it yet.
"""

from __future__ import annotations

from dataclasses import dataclass

STALL_BACKOFF_MS = 200
STALL_BACKOFF_MAX_MS = 5_000
STALL_KEPT_MS = 30_000
"""How long after its back-off an offset stops readers, as far as is known: one that wants it has it fetched again."""
STALLS_LIMIT = 64


@dataclass(slots=True)
class _Stall:
    attempts: int
    until_ms: int


class StalledOffsets:
    """The offsets in back-off, at most STALLS_LIMIT of them: above it the one that failed longest ago is forgotten."""

    def __init__(self) -> None:
        self._stalls: dict[int, _Stall] = {}

    def failed(self, offset: int, now_ms: int) -> int:
        """Notes that the fetch of an offset failed or brought nothing; returns the back-off in milliseconds."""
        stall = self._stalls.pop(offset, None) or _Stall(0, 0)
        pause_ms = min(STALL_BACKOFF_MS << min(stall.attempts, 10), STALL_BACKOFF_MAX_MS)
        self._stalls[offset] = _Stall(stall.attempts + 1, now_ms + pause_ms)
        if len(self._stalls) > STALLS_LIMIT:
            del self._stalls[next(iter(self._stalls))]
        return pause_ms

    def is_backing_off(self, offset: int, now_ms: int) -> bool:
        stall = self._stalls.get(offset)
        return stall is not None and now_ms < stall.until_ms

    def forget(self, first_offset: int, end_offset: int) -> None:
        """Forgets the offsets of this range: they were fetched, or the log begins after them."""
        for offset in [each for each in self._stalls if first_offset <= each < end_offset]:
            del self._stalls[offset]

    def __contains__(self, offset: int) -> bool:
        """Whether the last fetch of an offset failed or brought nothing, however long ago."""
        return offset in self._stalls

    def has_any(self, now_ms: int) -> bool:
        """Whether readers are stopped at an offset, as far as is known."""
        return any(now_ms - stall.until_ms <= STALL_KEPT_MS for stall in self._stalls.values())
