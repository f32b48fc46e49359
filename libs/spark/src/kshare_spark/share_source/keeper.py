"""The thread that owns a `Member`: heartbeats and renewals go on while Spark's process waits, works or is slow.

Other threads submit calls; the thread executes them one after the other, with due heartbeats and renewals in between.
So the member and the ledger need no lock. The longest call is a fetch, of at most its wait.

Locks are renewed when RENEW_AFTER of their duration has passed. Runs that a renewal shows to be lost leave the ledger.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from kshare_spark.share_source.cluster import Cluster, ClusterError
from kshare_spark.share_source.ledger import Ledger
from kshare_spark.share_source.member import RETRY_PAUSE_S, AcknowledgeType, Acquired, Member
from kshare_spark.share_source.options import ReadOptions
from kshare_spark.share_source.runs import RunMap

logger = logging.getLogger(__name__)

RENEW_AFTER = 1 / 3
LONGEST_REST_S = 1.0
SHORTEST_REST_S = 0.005
LARGEST_GATHERING = 1 / 4
"""The part of the lock's duration that the acquisition of one batch may take."""
FURTHER_WAIT_MS = 0
"""Later fetches of a batch do not wait for records."""
Result = TypeVar("Result")


class Keeper:
    """Acquires, renews, accepts and releases for one query; see the module's docstring."""

    def __init__(self, options: ReadOptions, *, ledger: Ledger | None = None) -> None:
        self.ledger = ledger or Ledger()
        self._options = options
        self._api_timeout_s = options.client.api_timeout_ms / 1000
        self._member = Member(Cluster(options.client), options.group_id, options.topics)
        self._calls: queue.Queue[tuple[Callable[[], Any], Future[Any]] | None] = queue.Queue()
        self._renew_at: float | None = None
        self._ended: dict[tuple[str, int], None] = {}
        """Partitions from which the source acquires no more, by (topic id, partition)."""
        self._awaited_assignment = False
        self._thread = threading.Thread(target=self._work, name="kshare-keeper", daemon=True)
        self._thread.start()

    def acquire(
        self,
        records: int | None,
        bytes_limit: int | None,
        *,
        ends: dict[tuple[str, int], int] | None = None,
        wait_ms: int | None = None,
    ) -> tuple[RunMap, int]:
        """The next batch's runs, and the earliest expiry of their locks in ms of this machine's clock.

        `ends` by (topic, partition): only records below these offsets are delivered; others are held until `close`.
        """
        wait = self._options.client.fetch_max_wait_ms if wait_ms is None else wait_ms
        return self._call(lambda: self._acquire(records, bytes_limit, ends, wait))

    def finished(self, runs: RunMap) -> RunMap:
        """Accepts the held runs of a batch that is done; returns the lost ones."""
        return self._call(lambda: self._accept(self.ledger.finished(runs)))

    def remember(self, unaccepted: RunMap) -> None:
        """Restores the runs of the checkpoint that are done but not accepted."""
        self._call(lambda: self.ledger.remember(unaccepted))

    def unaccepted(self) -> RunMap:
        return self._call(lambda: self.ledger.unaccepted.copy())

    def held(self) -> RunMap:
        return self._call(lambda: self.ledger.held.copy())

    def close(self) -> None:
        """Releases held runs and leaves the group, before it returns; a second call does nothing."""
        if self._thread.is_alive():
            self._calls.put(None)
            self._thread.join()

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _call(self, work: Callable[[], Result]) -> Result:
        if not self._thread.is_alive():
            raise ClusterError(f"share group {self._options.group_id}: this source has been stopped")
        future: Future[Any] = Future()
        self._calls.put((work, future))
        while True:
            try:
                result: Result = future.result(timeout=LONGEST_REST_S)
            except TimeoutError:
                if not future.done() and not self._thread.is_alive():
                    raise ClusterError(f"share group {self._options.group_id}: this source was stopped") from None
                if future.done():
                    raise
            else:
                return result

    def _work(self) -> None:
        try:
            while True:
                try:
                    call = self._calls.get(timeout=self._rest_s())
                except queue.Empty:
                    self._do_due()
                    continue
                if call is None:
                    return
                self._do(*call)
                self._do_due()
        finally:
            self._member.leave()

    def _do(self, work: Callable[[], Any], future: Future[Any]) -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # handed to the caller, who raises it
            future.set_exception(error)

    def _rest_s(self) -> float:
        now = time.monotonic()
        due = [at - now for at in (self._member.next_beat, self._renew_at) if at is not None]
        return max(min(due, default=LONGEST_REST_S), SHORTEST_REST_S)

    def _do_due(self) -> None:
        """Sends a due heartbeat and renews due locks. Heartbeats begin with the first acquisition."""
        try:
            if self._member.next_beat is not None:
                self._member.beat_if_due()
            self._renew_if_due()
        except ClusterError as error:
            # The next acquisition gets the same error and reports it to Spark.
            logger.error("%s", error)

    def _acquire(
        self,
        records: int | None,
        bytes_limit: int | None,
        ends: dict[tuple[str, int], int] | None,
        wait_ms: int,
    ) -> tuple[RunMap, int]:
        started = time.monotonic()
        self._member.join()
        if ends is not None and not self._awaited_assignment:
            self._member.await_whole_assignment()
            self._awaited_assignment = True
        taken = 0
        wait = wait_ms
        while True:
            left = None if records is None else records - self.ledger.waiting.records
            if left is not None and left <= 0:
                break
            self._member.beat_if_due()
            self._renew_if_due()
            largest = min(self._options.client.fetch_max_bytes, bytes_limit or self._options.client.fetch_max_bytes)
            found = self._member.acquire(records=left, largest_fetch_bytes=largest, wait_ms=wait, without=self._ended)
            if not found.runs:
                # A run that ends with the logs must not mistake an unreachable leader for a partition without records.
                if ends is None or found.is_whole or time.monotonic() - started > self._api_timeout_s:
                    break
                time.sleep(RETRY_PAUSE_S)
                continue
            self._take(found, ends)
            wait = FURTHER_WAIT_MS
            taken += found.bytes
            gathering_s = found.lock_timeout_ms / 1000 * LARGEST_GATHERING
            if (bytes_limit is not None and taken >= bytes_limit) or time.monotonic() - started > gathering_s:
                break
        lock_s = self._member.lock_timeout_ms / 1000
        deadline_ms = round((time.time() + started - time.monotonic() + lock_s) * 1000)
        return self.ledger.begin(), deadline_ms

    def _take(self, found: Acquired, ends: dict[tuple[str, int], int] | None) -> None:
        self._accept(self.ledger.acquired(found.runs))
        if self._renew_at is None and found.lock_timeout_ms:
            self._renew_at = time.monotonic() + found.lock_timeout_ms / 1000 * RENEW_AFTER
        if ends is not None:
            # Each acquisition counts as a delivery, so a partition that has reached its end is not fetched again.
            for place in self.ledger.hold_back(ends):
                self._ended[place.topic_id, place.partition] = None

    def _accept(self, runs: RunMap) -> RunMap:
        if not runs:
            return RunMap()
        confirmed, lost = self._member.acknowledge(runs, AcknowledgeType.ACCEPT)
        self.ledger.accepted(confirmed)
        self.ledger.lost(lost)
        if lost:
            logger.warning("%d records were done, and their locks lost before they were accepted", lost.records)
        return lost

    def _renew_if_due(self) -> None:
        if self._renew_at is None or time.monotonic() < self._renew_at:
            return
        self._renew_at = None
        held = self.ledger.held.copy()
        if not held:
            return
        self._renew_at = time.monotonic() + LONGEST_REST_S
        if self._member.renews:
            _, lost = self._member.acknowledge(held, AcknowledgeType.RENEW)
            self.ledger.lost(lost)
            if lost:
                logger.warning("the locks of %d records are lost; others may read them, too", lost.records)
        self._renew_at = time.monotonic() + self._member.lock_timeout_ms / 1000 * RENEW_AFTER
