"""The MetadataStore in a topic of an existing cluster; see the package's text.

A standby reads the log with a long poll and tells its listener what the active coordinator changes. When the log is
free it claims it and runs a session; after the session it reads the whole log again and is a standby.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from kshare_coordinator.metadata.port import (
    CATALOG,
    GROUP_PARTITIONS,
    CoordinatorMember,
    MetadataListener,
    OwnershipLost,
)
from kshare_coordinator.metadata.problems import Problems
from kshare_coordinator.metadata.upstream.failures import RETRY_INTERVAL_MS, UPSTREAM_FAILURES
from kshare_coordinator.metadata.upstream.members import Members, incarnation_bytes
from kshare_coordinator.metadata.upstream.records import PIECE_BYTES
from kshare_coordinator.metadata.upstream.rows import LogRows, Writes
from kshare_coordinator.metadata.upstream.session import AREA as LOG_AREA
from kshare_coordinator.metadata.upstream.session import (
    MARKS_PER_LEASE,
    PRUNING_AREA,
    TRUNCATED_AREA,
    UNCLAIMABLE,
    Limits,
    Session,
)
from kshare_coordinator.metadata.upstream.tail import LogLost, LogTail
from kshare_coordinator.metadata.upstream.topic import ensure_topic, log_partition, members_partition
from kshare_core.contained_bugs import report_contained_bug, restarted_after_bugs
from kshare_core.errors import StorageFailure
from kshare_runtime.ports import Write
from kshare_upstream.fenced_log.claim import Claim
from kshare_upstream.fenced_log.owner import FencedLog, LogTruncated, Superseded
from kshare_upstream.own_topics import metadata_topic
from kshare_upstream.partition_log import PartitionLog
from kshare_upstream.port import OpenedUpstream
from kshare_upstream.topics import DEFAULT_REPLICAS, MAX_BATCH_BYTES, Replicas

START_LIMIT_MS = 30_000
"""How long a start waits for the existing cluster."""
READ_WAIT_MS = 500
CALLS_PER_LEASE = 4
"""Number of consecutive calls that may be given up within a lease."""
JOURNAL_LIMIT = 10_000
JOURNAL_BYTES_LIMIT = 16 * 1024 * 1024
STOP_LIMIT_S = 1.0
"""How long a stop waits for the record that says so to other coordinators."""
AREA, CATALOG_AREA = "existing cluster", "catalog"

log = logging.getLogger(__name__)


class UpstreamMetadataStore:
    """A MetadataStore; see the module's text. It closes `upstream` when it stops."""

    def __init__(
        self,
        upstream: OpenedUpstream,
        *,
        topic_prefix: str,
        replicas: Replicas = DEFAULT_REPLICAS,
        lease_ms: int,
        now_ms: Callable[[], int],
        group_partitions: int = GROUP_PARTITIONS,
        piece_bytes: int = PIECE_BYTES,
        journal_limit: int = JOURNAL_LIMIT,
        journal_bytes_limit: int = JOURNAL_BYTES_LIMIT,
    ) -> None:
        self._upstream = upstream
        self._topic = metadata_topic(topic_prefix)
        self._replicas = replicas
        self._partitions = (CATALOG, *range(group_partitions))
        self._end_partition = group_partitions
        self._limits = Limits(
            lease_ms=lease_ms,
            piece_bytes=piece_bytes,
            journal_limit=journal_limit,
            journal_bytes_limit=journal_bytes_limit,
        )
        self._now_ms = now_ms
        self._log = PartitionLog(
            upstream, log_partition(self._topic.name), deadline_ms=lease_ms // CALLS_PER_LEASE, read_purpose="metadata"
        )
        self._problems = Problems()
        self._member: CoordinatorMember | None = None
        self._listener: MetadataListener | None = None
        self._members: Members | None = None
        self._tail: LogTail | None = None
        self._session: Session | None = None
        self._served_epoch = -1
        self._tasks: list[asyncio.Task[None]] = []
        self._reported: tuple[list[CoordinatorMember], dict[int, int]] = ([], {})

    async def start(self, member: CoordinatorMember, listener: MetadataListener) -> None:
        """Returns when the catalog is loaded; StorageFailure also if the cluster is unreachable for 30 s."""
        self._member, self._listener = member, listener
        self._members = Members(
            PartitionLog(
                self._upstream,
                members_partition(self._topic.name),
                deadline_ms=self._limits.lease_ms // CALLS_PER_LEASE,
                read_purpose="coordinators",
            ),
            member,
            lease_ms=self._limits.lease_ms,
            now_ms=self._now_ms,
            problems=self._problems,
            changed=self._report,
        )
        try:
            await self._first_load()
        except BaseException:
            await self._upstream.close()
            raise
        listening = restarted_after_bugs("reading the other coordinators' addresses", self._members.listen)
        self._begin(listening, "coordinators in the existing cluster")
        saying = restarted_after_bugs("writing this coordinator's address", self._members.say)
        self._begin(saying, "address in the existing cluster")
        owning = restarted_after_bugs("the ownership of the metadata", self._run)
        self._begin(owning, "metadata in the existing cluster")

    async def _first_load(self) -> None:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + START_LIMIT_MS / 1000
        is_there = False
        while True:
            try:
                if not is_there:
                    await ensure_topic(self._upstream, self._topic, self._replicas)
                    is_there = True
                await self._load()
                return
            except LogLost as lost:
                reason = str(lost)
            except UPSTREAM_FAILURES as error:
                reason = str(error)
            self._problems.note(AREA, f"the metadata in the existing cluster cannot be read, trying again: {reason}")
            if loop.time() >= give_up_at:
                raise StorageFailure(f"the metadata in the existing cluster cannot be read: {reason}")
            await asyncio.sleep(RETRY_INTERVAL_MS / 1000)

    def owns(self, partition: int) -> bool:
        return self._session is not None and CATALOG <= partition < self._end_partition and self._session.owns()

    def append(self, writes: Mapping[int, Sequence[Write]]) -> Awaitable[None] | None:
        """See the port; StorageFailure above 64 MiB."""
        found = {partition: of_one for partition, of_one in writes.items() if of_one}
        if not found:
            return None
        if self._session is not None:
            return self._session.append(found)
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lost.set_exception(OwnershipLost("another coordinator owns the metadata"))
        return lost

    def rows(self) -> dict[int, Sequence[Write]]:
        if self._session is not None and self._session.is_serving:
            rows = self._session.rows
            return {partition: rows.of(partition) for partition in self._partitions}
        assert self._tail is not None, "the store is not started"
        return {CATALOG: self._tail.rows.of(CATALOG)}

    def problems(self) -> list[str]:
        return self._problems.texts()

    async def stop(self) -> None:
        """Resigns; if the cluster cannot be reached, others take over when the lease has passed."""
        session, self._session = self._session, None
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if session is not None:
            await session.stop()
        if self._members is not None and self._tasks:
            try:
                async with asyncio.timeout(STOP_LIMIT_S):
                    await self._members.stop()
            except (TimeoutError, *UPSTREAM_FAILURES) as error:
                log.info("other coordinators were not told of the stop: %s", error)
        await self._upstream.close()

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work, name=name))

    # A standby.

    async def _run(self) -> None:
        """Is a standby and the owner by turns, until cancelled."""
        while True:
            try:
                if self._tail is None:
                    await self._load()
                await self._follow()
                session = await self._claim()
            except LogLost as lost:
                log.warning("reading all metadata again: %s", lost)
                self._tail = None
                await asyncio.sleep(RETRY_INTERVAL_MS / 1000)
            except StorageFailure as failure:
                self._problems.note(CATALOG_AREA, f"the metadata cannot be read: {failure}")
                self._tail = None
                await asyncio.sleep(RETRY_INTERVAL_MS / 1000)
            except UPSTREAM_FAILURES as error:
                self._problems.note(AREA, f"the metadata in the existing cluster cannot be read: {error}")
                await asyncio.sleep(RETRY_INTERVAL_MS / 1000)
            except Exception as bug:
                report_contained_bug("reading the metadata failed with an unexpected error", bug)
                self._problems.note(CATALOG_AREA, f"the metadata cannot be read: {bug!r}")
                self._tail = None
                await asyncio.sleep(RETRY_INTERVAL_MS / 1000)
            else:
                if session is not None:
                    await self._own(session)

    async def _load(self) -> None:
        """Reads the whole log and tells the listener the catalog."""
        assert self._listener is not None
        tail = LogTail(
            self._log, self._own_incarnation, lease_ms=self._limits.lease_ms, served_epoch=self._served_epoch
        )
        while not (tail.is_caught_up and tail.rows.is_whole):
            await tail.read(wait_ms=READ_WAIT_MS if tail.is_caught_up else 0)
        self._tail = tail
        self._problems.clear(AREA)
        self._problems.clear(CATALOG_AREA)
        self._listener.catalog_loaded(tail.rows.of(CATALOG))
        self._report()

    async def _follow(self) -> None:
        """Reads on until the log is free."""
        tail = self._tail
        assert tail is not None and self._listener is not None
        loop = asyncio.get_running_loop()
        while not tail.may_claim:
            left_ms = max(0, int((tail.free_at - loop.time()) * 1000) + 1) if tail.is_caught_up else 0
            self._deliver(tail, await tail.read(wait_ms=min(READ_WAIT_MS, left_ms)))
            self._problems.clear(AREA)
            self._report()

    def _deliver(self, tail: LogTail, changes: Sequence[Writes | None]) -> None:
        assert self._listener is not None
        if None in changes:
            self._listener.catalog_loaded(tail.rows.of(CATALOG))
            return
        for writes in changes:
            of_catalog = writes.get(CATALOG) if writes else None
            if of_catalog:
                self._listener.catalog_changed(of_catalog)

    # The owner.

    async def _claim(self) -> Session | None:
        """Claims the log; None if another coordinator was first, or the outcome is unknown."""
        tail = self._tail
        assert tail is not None and self._member is not None and self._listener is not None
        loop = asyncio.get_running_loop()
        epoch = tail.claim.epoch + 1 if tail.claim is not None else 0
        claim = Claim(epoch, 0, self._member.node_id, self._own_incarnation)
        fenced = FencedLog(self._upstream, self._log, max_batch_bytes=MAX_BATCH_BYTES, now_ms=self._now_ms)
        rows, sent_at = LogRows(), loop.time()
        try:
            await fenced.claim(claim, rows.fold)
            end_offset = fenced.end_offset
            if loop.time() - sent_at > self._limits.lease_ms / 1000 / MARKS_PER_LEASE:
                sent_at = loop.time()
                await fenced.mark()
        except Superseded as problem:
            log.info("another coordinator was first to claim the metadata: %s", problem)
            tail.is_caught_up = False
            return None
        except (LogTruncated, *UNCLAIMABLE) as problem:
            self._problems.note(AREA, f"the metadata log cannot be claimed: {problem}")
            tail.is_caught_up = False
            await asyncio.sleep(RETRY_INTERVAL_MS / 1000)
            return None
        if not rows.is_whole or rows.next_number < tail.rows.next_number:
            raise LogLost(f"the log has {rows.next_number} appends, and {tail.rows.next_number} were read before")
        if rows.next_number > tail.rows.next_number:
            self._listener.catalog_loaded(rows.of(CATALOG))
        # Between what was read and the claim there may be newer records of an owner that still serves.
        is_next = end_offset - 1 == tail.position
        serve_from = tail.free_at if is_next else loop.time() + self._limits.lease_ms / 1000
        return Session(
            fenced,
            claim,
            rows,
            self._limits,
            self._problems,
            sent_at=sent_at,
            serve_from=serve_from,
            on_serving=self._serving,
        )

    async def _own(self, session: Session) -> None:
        assert self._listener is not None and self._members is not None
        self._session = session
        self._problems.clear(AREA)
        reason = await session.run()
        self._session = self._tail = None
        self._members.prunes = False
        log.warning("lost the metadata: %s", reason)
        for area in (LOG_AREA, TRUNCATED_AREA, PRUNING_AREA):
            self._problems.clear(area)
        if session.has_served:
            for partition in self._partitions:
                self._listener.lost(partition)
        self._report()

    def _serving(self) -> None:
        session, listener = self._session, self._listener
        if session is None:
            return  # the store is stopping
        assert listener is not None and self._members is not None
        self._served_epoch = session.claim.epoch
        self._members.prunes = True
        listener.gained(CATALOG, ())
        for partition in self._partitions[1:]:
            listener.gained(partition, session.rows.of(partition))
        self._report()

    # Reports.

    @property
    def _own_incarnation(self) -> bytes:
        assert self._member is not None
        return incarnation_bytes(self._member)

    def _owner(self, members: Sequence[CoordinatorMember]) -> int | None:
        """The node id of the live coordinator that owns the metadata."""
        assert self._member is not None
        if self._session is not None:
            return self._member.node_id if self._session.owns() else None
        tail = self._tail
        if tail is None or tail.claim is None or tail.has_resigned or asyncio.get_running_loop().time() >= tail.free_at:
            return None
        for member in members:
            if incarnation_bytes(member) == tail.claim.incarnation:
                return member.node_id
        return None

    def _report(self) -> None:
        assert self._listener is not None and self._members is not None
        members = self._members.live()
        owner = self._owner(members)
        owners = {} if owner is None else dict.fromkeys(self._partitions, owner)
        if (members, owners) != self._reported:
            self._reported = (members, owners)
            self._listener.members_changed(members, owners)
