"""The removal of deleted topics' records from a leader's store.

One durable write removes up to TOPICS_REMOVED_IN_A_TURN topics; the next one follows after REMOVAL_PAUSE_MS. So a
request that deletes hundreds of topics delays neither the lease nor clients. A leader writes nothing for topics of
which it has no rows, which for most leaders of a cluster are most topics.

A topic is removed as a whole or not at all. The next start finds again what a crash left (`stray_topics`), because ids
of topics are never reused. After a failed write the topics wait for the next call of `go_on`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterator
from itertools import islice

from kshare_core.errors import StorageFailure
from kshare_core.identifiers import topic_id_text
from kshare_leader.log import keys
from kshare_runtime.ports import KeyRange, KeyValueStore

TOPICS_REMOVED_IN_A_TURN = 20
"""Each takes a look into PARTITION_FAMILIES; all of them one fsync."""
REMOVAL_PAUSE_MS = 5
"""The pause after each write, to leave time for clients."""


class TopicRemoval:
    """The deleted topics of one store whose records are still there. `go_on` needs a running event loop."""

    def __init__(
        self,
        store: KeyValueStore,
        *,
        rows: KeyValueStore | None = None,
        is_allowed: Callable[[], bool] = lambda: True,
        on_removed: Callable[[bytes], None] = lambda topic_id: None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`rows` are those below the checksums of `store`, for what their keys tell.

        `is_allowed`: whether the newest catalog tells which topics exist; nothing is removed while it does not.
        `on_removed` is called with each topic of which nothing is left.
        """
        self._store = store
        self._rows = rows or store
        self._is_allowed = is_allowed
        self._on_removed = on_removed
        self._report = report
        self._topics: dict[bytes, str | None] = {}
        """With the failure of the last attempt."""
        self._next: asyncio.TimerHandle | None = None

    def __contains__(self, topic_id: object) -> bool:
        return topic_id in self._topics

    def add(self, topic_id: bytes) -> None:
        self._topics.setdefault(topic_id)

    def keep(self, *kept: Container[bytes]) -> None:
        """Takes topics off the list: an older copy of the catalog has brought them back, or does not know them."""
        self._topics = {
            topic_id: why
            for topic_id, why in self._topics.items()
            if not any(topic_id in topic_ids for topic_ids in kept)
        }

    def problems(self) -> Iterator[str]:
        """The topics whose removal failed, one sentence each."""
        for topic_id, why in self._topics.items():
            if why is not None:
                yield f"the records of topic {topic_id_text(topic_id)} are not removed: {why}"

    def pause(self) -> None:
        """Ends the removal until the next call of `go_on`."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def go_on(self) -> None:
        """Removes the first topics now, and the others in later turns of the event loop."""
        self.pause()
        if not self._is_allowed():
            return
        topic_ids = list(islice(self._topics, TOPICS_REMOVED_IN_A_TURN))
        try:
            ranges = [found for topic_id in topic_ids for found in self._ranges(topic_id)]
            if ranges:
                self._store.delete_ranges(ranges)
        except StorageFailure as failure:
            for topic_id in topic_ids:
                self._topics[topic_id] = str(failure)
            others = f" and {len(topic_ids) - 1} others" if len(topic_ids) > 1 else ""
            self._report(f"the records of topic {topic_id_text(topic_ids[0])}{others} could not be removed: {failure}")
            return
        for topic_id in topic_ids:
            del self._topics[topic_id]
            self._on_removed(topic_id)
        if self._topics:
            self._next = asyncio.get_running_loop().call_later(REMOVAL_PAUSE_MS / 1000, self.go_on)

    def _ranges(self, topic_id: bytes) -> Iterator[KeyRange]:
        end = keys.end_of_topic(topic_id)
        for family in keys.PARTITION_FAMILIES:
            if self._has_rows(family, topic_id, end):
                yield KeyRange(family, topic_id, end)

    def _has_rows(self, family: str, topic_id: bytes, end: bytes) -> bool:
        try:
            # Passes the tombstones of this topic at most, and only those of single rows.
            return next(iter(self._rows.scan(family, topic_id, end)), None) is not None
        except StorageFailure:  # rows that cannot be read can be removed
            return True
