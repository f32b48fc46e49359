"""Several coordinators' metadata stores on one etcd or existing cluster, and listeners that check what they are told.

Broken rules are collected in `violations`: a partition that two own at once, one that is gained twice or lost without
being owned, a catalog that is loaded by its owner.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, Self, TypeVar

from kshare_coordinator.metadata.etcd_store import EtcdMetadataStore
from kshare_coordinator.metadata.port import CATALOG, CoordinatorMember, MetadataStore
from kshare_coordinator.metadata.upstream.store import UpstreamMetadataStore
from kshare_runtime.ports import Write
from kshare_upstream.topics import Replicas
from support.metadata.etcd_backends import Backend, until
from support.metadata.faulty_etcd import FaultyEtcd
from support.metadata.upstream_backends import UpstreamBackend
from support.upstream.faulty_upstream import FaultyUpstream

FAMILY = "coordinator"
LEASE_MS = 2_000
PREFIX = "/test/"


def write(key: str, value: str | None) -> Write:
    return Write(FAMILY, key.encode(), None if value is None else value.encode())


def texts(rows: Sequence[Write]) -> dict[str, str]:
    return {row.key.decode(): row.value.decode() for row in rows if row.value is not None}


class Rules(Protocol):
    """What a listener needs of its cluster."""

    group_partitions: int
    violations: list[str]

    def check_gained(self, partition: int, node_id: int) -> None: ...


class ListeningCoordinator:
    """One store and its listener."""

    def __init__(self, cluster: Rules, node_id: int, incarnation: str, store: MetadataStore) -> None:
        self._cluster = cluster
        self.node_id = node_id
        self.member = CoordinatorMember(node_id, incarnation, f"127.0.0.1:{9000 + node_id}")
        self.store = store
        self.catalog: dict[str, str] = {}
        self.loads = 0
        self.catalog_appends: list[dict[str, str | None]] = []
        self.gained_rows: dict[int, dict[str, str]] = {}
        self.members: list[CoordinatorMember] = []
        self.owners: dict[int, int] = {}

    @property
    def group_partitions(self) -> list[int]:
        return [partition for partition in range(self._cluster.group_partitions) if self.store.owns(partition)]

    async def put(self, partition: int, key: str, value: str | None) -> None:
        await self.append({partition: [write(key, value)]})

    async def append(self, writes: Mapping[int, Sequence[Write]]) -> None:
        waiting = self.store.append(writes)
        assert waiting is not None
        await waiting

    def rows(self, partition: int) -> dict[str, str]:
        return texts(self.store.rows()[partition])

    # The listener.

    def catalog_loaded(self, rows: Sequence[Write]) -> None:
        self.loads += 1
        self.catalog = texts(rows)
        if self.store.owns(CATALOG):
            self._cluster.violations.append(f"{self.node_id} loads a catalog that it owns")

    def catalog_changed(self, writes: Sequence[Write]) -> None:
        changes = {one.key.decode(): None if one.value is None else one.value.decode() for one in writes}
        self.catalog_appends.append(changes)
        self.catalog = {key: value for key, value in (self.catalog | changes).items() if value is not None}

    def gained(self, partition: int, rows: Sequence[Write]) -> None:
        if partition in self.gained_rows:
            self._cluster.violations.append(f"{self.node_id} gains {partition} twice")
        self._cluster.check_gained(partition, self.node_id)
        self.gained_rows[partition] = texts(rows)

    def lost(self, partition: int) -> None:
        if self.gained_rows.pop(partition, None) is None:
            self._cluster.violations.append(f"{self.node_id} loses {partition}, which it has not")
        if self.store.owns(partition):
            self._cluster.violations.append(f"{self.node_id} owns {partition}, which it lost")

    def members_changed(self, members: Sequence[CoordinatorMember], owners: Mapping[int, int]) -> None:
        self.members = list(members)
        self.owners = dict(owners)


class Coordinator(ListeningCoordinator):
    """One with its metadata in etcd."""

    def __init__(self, cluster: Cluster, node_id: int, incarnation: str, **limits: int) -> None:
        self.etcd = FaultyEtcd(cluster.backend.client())
        store = EtcdMetadataStore(self.etcd, prefix=PREFIX, lease_ms=LEASE_MS, **limits)
        super().__init__(cluster, node_id, incarnation, store)


class UpstreamCoordinator(ListeningCoordinator):
    """One with its metadata in an existing cluster."""

    def __init__(self, cluster: UpstreamCluster, node_id: int, incarnation: str, **limits: int) -> None:
        backend = cluster.backend
        self.upstream = FaultyUpstream(backend.client(), lambda: backend.is_paused)
        self.kafka_store = UpstreamMetadataStore(
            self.upstream,
            topic_prefix=backend.topic_prefix,
            replicas=Replicas(1, is_configured=True),
            lease_ms=LEASE_MS,
            now_ms=lambda: 0,
            **limits,
        )
        super().__init__(cluster, node_id, incarnation, self.kafka_store)


AnyCoordinator = TypeVar("AnyCoordinator", bound=ListeningCoordinator)


class StoreCluster(Generic[AnyCoordinator]):
    """See the module's text. Use as an asynchronous context manager: it checks the rules all the time, every 5 ms."""

    def __init__(self, *, group_partitions: int = 50) -> None:
        self.group_partitions = group_partitions
        self.coordinators: list[AnyCoordinator] = []
        self.violations: list[str] = []
        self._most_owned = 0
        self._incarnations = itertools.count(1)
        self._sampler: asyncio.Task[None] | None = None
        self._all: list[AnyCoordinator] = []

    def build(self, node_id: int, incarnation: str, **limits: int) -> AnyCoordinator:
        raise NotImplementedError

    async def close(self) -> None:
        """Closes what the test itself opened."""

    async def __aenter__(self) -> Self:
        self._sampler = asyncio.ensure_future(self._sample())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._sampler is not None
        self._sampler.cancel()
        for coordinator in self.coordinators:
            await coordinator.store.stop()
        await self.close()
        assert self.violations == []
        assert self._most_owned > 0, "the sampler saw nothing, so it proves nothing"

    async def start(self, node_id: int, **limits: int) -> AnyCoordinator:
        coordinator = self.build(
            node_id, f"life {next(self._incarnations)}", **{"group_partitions": self.group_partitions, **limits}
        )
        self.coordinators.append(coordinator)
        self._all.append(coordinator)
        await coordinator.store.start(coordinator.member, coordinator)
        return coordinator

    async def stop(self, coordinator: AnyCoordinator) -> None:
        self.coordinators.remove(coordinator)
        await coordinator.store.stop()

    def owner(self, partition: int) -> AnyCoordinator | None:
        owners = [one for one in self.coordinators if one.store.owns(partition)]
        return owners[0] if owners else None

    def counts(self) -> list[int]:
        """How many group partitions each coordinator owns."""
        return [len(one.group_partitions) for one in self.coordinators]

    def is_complete(self) -> bool:
        return all(self.owner(partition) is not None for partition in range(CATALOG, self.group_partitions))

    def is_balanced(self) -> bool:
        share = -(-self.group_partitions // max(1, len(self.coordinators)))
        return self.is_complete() and max(self.counts()) <= share

    async def balanced(self, *, within_s: float = 20.0) -> float:
        return await until(self.is_balanced, within_s=within_s)

    def check_gained(self, partition: int, node_id: int) -> None:
        others = [one.node_id for one in self._owners(partition) if one.node_id != node_id]
        if others:
            self.violations.append(f"{node_id} gains {partition}, which {others} own")

    def _owners(self, partition: int) -> list[AnyCoordinator]:
        return [one for one in self._all if one.store.owns(partition)]

    async def _sample(self) -> None:
        while True:
            for partition in range(CATALOG, self.group_partitions):
                owners = self._owners(partition)
                if len(owners) > 1:
                    self.violations.append(f"{[one.node_id for one in owners]} own {partition}")
            self._most_owned = max(self._most_owned, *self.counts(), 0)
            await asyncio.sleep(0.005)


class Cluster(StoreCluster[Coordinator]):
    """On one etcd. `raw` is a client of the test's own."""

    def __init__(self, backend: Backend, *, group_partitions: int = 50) -> None:
        super().__init__(group_partitions=group_partitions)
        self.backend = backend
        self.raw = FaultyEtcd(backend.client())

    def build(self, node_id: int, incarnation: str, **limits: int) -> Coordinator:
        return Coordinator(self, node_id, incarnation, **limits)

    async def close(self) -> None:
        await self.raw.close()


class UpstreamCluster(StoreCluster[UpstreamCoordinator]):
    """On one existing cluster: one coordinator owns everything. `raw` is a client of the test's own."""

    def __init__(self, backend: UpstreamBackend, *, group_partitions: int = 50) -> None:
        super().__init__(group_partitions=group_partitions)
        self.backend = backend
        self._raw: FaultyUpstream | None = None

    @property
    def raw(self) -> FaultyUpstream:
        if self._raw is None:
            self._raw = FaultyUpstream(self.backend.client())
        return self._raw

    def build(self, node_id: int, incarnation: str, **limits: int) -> UpstreamCoordinator:
        return UpstreamCoordinator(self, node_id, incarnation, **limits)

    async def close(self) -> None:
        if self._raw is not None:
            await self._raw.close()

    async def owned(self, *, within_s: float = 20.0) -> UpstreamCoordinator:
        """Waits for an owner of everything."""
        await until(self.is_complete, within_s=within_s)
        owner = self.owner(CATALOG)
        assert owner is not None
        return owner
