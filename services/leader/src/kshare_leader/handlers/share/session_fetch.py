"""A ShareFetch of a remembered session (`share.fetch_sessions`): it looks only where something may be deliverable.

It does what `share_fetch` does, with these differences:
- The leader chooses the order in which partitions are tried.
- `max_bytes` is divided between at most `FetchSession.tried_at_once` partitions at a time.
- The answer has only the partitions with records, errors or acknowledgements.
"""

from __future__ import annotations

import asyncio

from kshare_core.errors import KafkaError
from kshare_core.identifiers import SharePartitionKey
from kshare_leader.handlers.share.share_fetch import PartitionFetch, ShareFetchCall, now_ms
from kshare_leader.share.directory import SharePartitionDirectory
from kshare_leader.share.fetch_sessions import FetchSession
from kshare_leader.share.served_partition import ServedPartition
from kshare_rpc.generated.kshare.v1 import leader_pb2

_FETCHED = leader_pb2.ShareFetchRequest.Partition(fetch=True)
"""Of partitions that the request does not name: without acknowledgements and cached runs."""


class SessionFetchCall(ShareFetchCall):
    """One ShareFetch of `session` in progress."""

    def __init__(
        self, directory: SharePartitionDirectory, request: leader_pb2.ShareFetchRequest, session: FetchSession
    ) -> None:
        super().__init__(directory, request)
        self.session: FetchSession = session
        self._by_key = {fetch.key: fetch for fetch in self._partitions}

    def _look_up(self) -> None:
        session = self.session
        if session.begin_fetch(self.fetch_number, now_ms()):
            for key in session.served:
                self._find(key)
                session.rouse(key)

    def _find(self, key: SharePartitionKey) -> ServedPartition | None:
        """Looks a share-partition up, and loads it if it is new; an error is for the answer."""
        session = self.session
        before = session.served[key]
        try:
            found = self._directory.find_or_load(key)
        except KafkaError as error:
            self._fetch_of(key).error = error
            session.served[key] = None
            return None
        if found is not before:
            found.add_member(self.owner)
            session.served[key] = found
        return found

    def _fetch_of(self, key: SharePartitionKey) -> PartitionFetch:
        fetch = self._by_key.get(key)
        if fetch is None:
            fetch = self._by_key[key] = PartitionFetch(_FETCHED, key)
            self._partitions.append(fetch)
        return fetch

    # Acquiring

    def _may_wait(self) -> bool:
        request = self._request
        return request.min_bytes > 0 and request.max_wait_ms > 0 and bool(self.session.served)

    def _attempt(self, *, may_wait: bool) -> bool:
        self._read_settings()
        session = self.session
        if may_wait and not self._has_min_bytes():
            session.sleep_where_ready()
            return False
        something = False
        records_left, bytes_left = self._request.max_records, self._request.max_bytes
        not_tried, had_records = len(session.ready), 0
        passed_over: list[SharePartitionKey] = []
        """Deliverable ones whose next batch was longer than what the others left."""
        while not_tried > 0 and records_left > 0 and not (something and bytes_left <= 0):
            deliverable, looked_at, has_error = self._deliverable(not_tried)
            not_tried -= looked_at
            something |= has_error
            for index, (fetch, served) in enumerate(deliverable):
                if records_left <= 0 or (something and bytes_left <= 0):
                    session.try_first([fetch.key for fetch, _ in deliverable[index:]])
                    break
                share = max(1, bytes_left // (len(deliverable) - index))
                is_taken = self._take(fetch, served, records_left, share, at_least_one_batch=not had_records)
                something |= is_taken
                if fetch.taken.records:
                    session.had_records()
                    had_records += 1
                records_left -= sum(last - first + 1 for first, last, _ in fetch.taken.records)
                bytes_left -= sum(batch.length for batch in fetch.taken.batches)
                if had_records and not is_taken:
                    passed_over.append(fetch.key)
                elif something or not self._directory.has_lease():
                    session.ready[fetch.key] = None
                else:  # its records are not here yet, which does not concern the wake-ups of other partitions
                    served.sleep(session)
        session.try_first(passed_over)
        if not something:
            session.sleep_where_ready()
        session.attempted(had_records, was_filled=records_left <= 0)
        return something

    def _deliverable(self, limit: int) -> tuple[list[tuple[PartitionFetch, ServedPartition]], int, bool]:
        """Looks at the first of those that are ready; how many were looked at, and whether one has an error.

        The deliverable ones are not ready any more; the session sleeps where nothing is deliverable.
        """
        session = self.session
        found: list[tuple[PartitionFetch, ServedPartition]] = []
        failed: list[SharePartitionKey] = []
        looked_at = 0
        while session.ready and looked_at < limit and len(found) < session.tried_at_once:
            looked_at += 1
            key, _ = session.ready.popitem(last=False)
            served = self._usable(key)
            if served is None:
                failed.append(key)
                continue
            if self._waiting is None:
                served.serve_waiting()
            if served.has_deliverable():
                fetch = self._fetch_of(key)
                fetch.served = served
                found.append((fetch, served))
            else:
                served.sleep(session)
        session.ready.update(dict.fromkeys(failed))
        return found, looked_at, bool(failed)

    def _usable(self, key: SharePartitionKey) -> ServedPartition | None:
        """The share-partition, unless it has an error; one that was dropped before this fetch is looked up anew."""
        served = self.session.served[key]
        if served is not None and served.error is None:
            return served
        if self._waiting is None:
            return self._find(key)
        if served is not None:
            self._fetch_of(key).error = served.error
        return None

    def _has_min_bytes(self) -> bool:
        """Errors, too, let the attempt go on and answer with them."""
        if min(self._request.min_bytes, self._request.max_bytes) <= 1:
            return True
        for key in list(self.session.ready):
            served = self._usable(key)
            if served is None:
                return True
            self._fetch_of(key).served = served
        return super()._has_min_bytes()

    # Waiting and answering

    async def _wait_at_partitions(self, waiting: asyncio.Future[None]) -> None:
        session = self.session
        session.waiter = self
        try:
            await waiting
        finally:
            if session.waiter is self:
                session.waiter = None
            session.used_at_ms = now_ms()

    def _is_named(self, fetch: PartitionFetch) -> bool:
        return bool(fetch.request.acknowledgement_batches or fetch.taken.records or fetch.error is not None)
