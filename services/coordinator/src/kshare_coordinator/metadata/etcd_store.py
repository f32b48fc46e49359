"""The metadata store in etcd, shared by several coordinators: etcd gives leases, elections, fencing and order.

- `session`: one lease and the partitions owned under it; when it ends, this store starts the next one.
- `ownership`, `appending`, `trimming`: fenced writes.
- `catalog_follower`: other coordinators' writes to the catalog.
- `claims`, `coordination`, `partition_rows`, `layout`: the pure parts.

etcd has to compact old revisions by itself (`--auto-compaction-retention=1h` or similar), because other applications
may use it, too. Without compaction its database grows with every append until it refuses writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence

from kshare_coordinator.metadata.catalog_follower import CatalogFollower
from kshare_coordinator.metadata.coordination import Coordination
from kshare_coordinator.metadata.etcd.port import Etcd, EtcdError, EtcdRefused, Put
from kshare_coordinator.metadata.layout import Layout, member_bytes
from kshare_coordinator.metadata.ownership import RETRY_INTERVAL_MS
from kshare_coordinator.metadata.port import (
    CATALOG,
    GROUP_PARTITIONS,
    CoordinatorMember,
    MetadataListener,
    OwnershipLost,
)
from kshare_coordinator.metadata.problems import Problems
from kshare_coordinator.metadata.session import Limits, Session
from kshare_core.contained_bugs import report_contained_bug
from kshare_core.errors import StorageFailure
from kshare_runtime.ports import Write

START_LIMIT_MS = 30_000
"""How long a start waits for etcd."""
JOURNAL_LIMIT = 1_000
JOURNAL_BYTES_LIMIT = 8 * 1024 * 1024
VALUE_BYTES_LIMIT = 1_000_000
"""Limit of one value, and of all values of one append that are not in pieces: etcd takes requests of 1.5 MiB."""

log = logging.getLogger(__name__)


class EtcdMetadataStore:
    """A MetadataStore; see the module's text. It closes `etcd` when it stops."""

    def __init__(
        self,
        etcd: Etcd,
        *,
        prefix: str,
        lease_ms: int,
        group_partitions: int = GROUP_PARTITIONS,
        journal_limit: int = JOURNAL_LIMIT,
        journal_bytes_limit: int = JOURNAL_BYTES_LIMIT,
        value_bytes_limit: int = VALUE_BYTES_LIMIT,
    ) -> None:
        self._etcd = etcd
        self._layout = Layout(prefix)
        self._limits = Limits(
            lease_ms=lease_ms,
            group_partitions=group_partitions,
            journal_limit=journal_limit,
            journal_bytes_limit=journal_bytes_limit,
            value_bytes_limit=value_bytes_limit,
        )
        self._problems = Problems()
        self._member: CoordinatorMember | None = None
        self._listener: MetadataListener | None = None
        self._follower: CatalogFollower | None = None
        self._following: asyncio.Task[None] | None = None
        self._session: Session | None = None
        self._main: asyncio.Task[None] | None = None
        self._reported: tuple[list[CoordinatorMember], dict[int, int]] = ([], {})

    async def start(self, member: CoordinatorMember, listener: MetadataListener) -> None:
        """Returns when the catalog is loaded; StorageFailure if it cannot be read, or etcd is unreachable for 30 s."""
        self._member, self._listener = member, listener
        self._follower = CatalogFollower(self._etcd, self._layout, listener, self._problems)
        try:
            await self._first_load(self._follower)
        except BaseException:
            await self._etcd.close()
            raise
        self._begin_following()
        self._main = asyncio.get_running_loop().create_task(self._run(), name="metadata in etcd")

    async def _first_load(self, follower: CatalogFollower) -> None:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + START_LIMIT_MS / 1000
        while True:
            try:
                await follower.catch_up()
                return
            except EtcdRefused as error:
                raise StorageFailure(f"etcd refused to read the catalog: {error}") from error
            except EtcdError as error:
                if loop.time() >= give_up_at:
                    raise StorageFailure(f"etcd cannot be reached: {error}") from error
            await asyncio.sleep(RETRY_INTERVAL_MS / 1000)

    def owns(self, partition: int) -> bool:
        return self._session is not None and self._session.owns(partition)

    def append(self, writes: Mapping[int, Sequence[Write]]) -> Awaitable[None] | None:
        """See the port; StorageFailure above 64 MiB."""
        found = {partition: of_partition for partition, of_partition in writes.items() if of_partition}
        if not found:
            return None
        if self._session is not None:
            return self._session.append(found)
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lost.set_exception(OwnershipLost("this coordinator has no lease and owns nothing"))
        return lost

    def rows(self) -> dict[int, Sequence[Write]]:
        assert self._follower is not None, "the store is not started"
        found: dict[int, Sequence[Write]] = {CATALOG: self._follower.rows.writes()}
        if self._session is not None:
            found.update(self._session.rows())
        return found

    def problems(self) -> list[str]:
        return self._problems.texts()

    async def stop(self) -> None:
        """Revokes its lease; if etcd cannot be reached, its partitions become free when the lease expires."""
        session, self._session = self._session, None
        for task in (self._main, self._following):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if session is not None:
            session.close()
            await session.wait_closed()
            await self._revoke(session)
        await self._etcd.close()

    async def _run(self) -> None:
        """Runs sessions until cancelled, or until an unexpected error, which remains a problem of the node."""
        try:
            await self._run_sessions()
        except Exception as bug:
            report_contained_bug("an unexpected error ended the requests for leases", bug)
            self._problems.note("leases", f"no more leases are requested, restart this coordinator: {bug!r}")

    async def _run_sessions(self) -> None:
        """Runs one session after the other."""
        while True:
            session = await self._begin_session()
            if session is None:
                await asyncio.sleep(RETRY_INTERVAL_MS / 1000)
                continue
            self._session = session
            reason = await session.run()
            self._session = None
            log.warning("lost all partitions of the metadata, restarting with a new lease: %s", reason)
            self._begin_following()
            await session.wait_closed()
            await self._revoke(session)

    async def _begin_session(self) -> Session | None:
        """A session with a new lease; None if etcd gave none."""
        assert self._member is not None and self._listener is not None and self._follower is not None
        sent_at = asyncio.get_running_loop().time()
        try:
            lease = await self._etcd.grant(self._limits.lease_ms)
            key = self._layout.member(self._member.node_id)
            await self._etcd.transact([], [Put(key, member_bytes(self._member), lease.id)])
        except EtcdError as error:
            self._problems.note("lease", f"etcd did not grant a lease: {error}")
            return None
        self._problems.clear("lease")
        return Session(
            etcd=self._etcd,
            layout=self._layout,
            limits=self._limits,
            member=self._member,
            listener=self._listener,
            follower=self._follower,
            problems=self._problems,
            report=self._report,
            lease=lease,
            sent_at=sent_at,
        )

    def _begin_following(self) -> None:
        assert self._follower is not None
        if self._following is not None:
            self._following.cancel()
        self._following = asyncio.get_running_loop().create_task(self._follower.run(), name="catalog in etcd")

    async def _revoke(self, session: Session) -> None:
        """Revokes the lease, so that other coordinators need not wait until it expires; a failure is only logged."""
        try:
            await self._etcd.revoke(session.lease.id)
        except EtcdError as error:
            log.info("lease %x could not be revoked and will expire: %s", session.lease.id, error)

    def _report(self, view: Coordination) -> None:
        assert self._listener is not None
        found = (view.live(), view.owner_nodes())
        if found != self._reported:
            self._reported = found
            self._listener.members_changed(*found)
