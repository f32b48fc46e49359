"""Sequence numbers of events, which continue when a share-partition is unloaded and loaded again.

The number of remembered share-partitions is limited; one that is not served is evicted. When it is loaded again, it
begins above every evicted number. To a reader this looks like a loss, and cannot be told from one.
"""

from __future__ import annotations

from kshare_core.identifiers import SharePartitionKey


class Number:
    """The number of a share-partition's next event; `is_used` while the share-partition is served."""

    __slots__ = ("is_used", "next")

    def __init__(self, first: int) -> None:
        self.next = first
        self.is_used = True


class Numbers:
    """See the module docstring."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[SharePartitionKey, Number] = {}
        self._first = 0

    def of(self, key: SharePartitionKey) -> Number:
        """The number of a newly served share-partition; it is in use until its `is_used` is set to False."""
        number = self._known.pop(key, None)
        if number is None:
            self._make_room()
            number = Number(self._first)
        number.is_used = True
        self._known[key] = number  # the last to be evicted
        return number

    def _make_room(self) -> None:
        if len(self._known) < self._limit:
            return
        unused = next((key for key, number in self._known.items() if not number.is_used), None)
        if unused is not None:
            self._first = max(self._first, self._known.pop(unused).next)
