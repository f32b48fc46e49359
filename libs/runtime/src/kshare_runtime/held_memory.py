"""The caches of one process that can give memory back, by name.

Each part that caches something registers it here. The watch of the process's memory
(`kshare_servicekit.memory.giving_back`) reads how much each cache holds, and asks it to shrink. A cache may grow again
up to its own limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCache:
    """One cache. `shrink(n)` makes it hold at most n bytes, soon if not at once; what is in use may stay."""

    name: str
    limit_bytes: int
    used_bytes: Callable[[], int]
    shrink: Callable[[int], None]


class HeldMemory:
    """See the module's text. Several nodes of a process may have a cache of the same name."""

    def __init__(self) -> None:
        self._caches: list[HeldCache] = []

    def add(self, cache: HeldCache) -> Callable[[], None]:
        """Registers a cache; the returned function ends that."""
        self._caches.append(cache)

        def remove() -> None:
            if cache in self._caches:
                self._caches.remove(cache)

        return remove

    @property
    def caches(self) -> list[HeldCache]:
        return list(self._caches)

    @property
    def used_bytes(self) -> int:
        """The bytes of all caches."""
        return sum(cache.used_bytes() for cache in self._caches)

    def shrink_to_share(self, share: float) -> None:
        """Shrinks each cache to this share of its limit."""
        for cache in self._caches:
            cache.shrink(int(cache.limit_bytes * share))

    def shrink_by(self, size_bytes: int) -> None:
        """Shrinks all caches by `size_bytes` together, each in proportion to what it holds."""
        used = {id(cache): cache.used_bytes() for cache in self._caches}
        total = sum(used.values())
        if total <= 0:
            return
        kept = max(0, total - size_bytes) / total
        for cache in self._caches:
            cache.shrink(int(used[id(cache)] * kept))
