"""Opening of a coordinator's MetadataStore, as its configs name it; a process loads the code of that store only."""

from __future__ import annotations

from collections.abc import Callable

from kshare_coordinator.metadata.etcd.port import Etcd
from kshare_coordinator.metadata.etcd.settings import EtcdSettings, etcd_settings
from kshare_coordinator.metadata.port import MetadataStore
from kshare_core.configs import Configs, InvalidConfig
from kshare_runtime.ports import Environment, Write
from kshare_upstream.port import OpenUpstream

STORE_NAME = "coordinator"
FAMILY = "coordinator"
"""The family of all rows: machine.records.FAMILY."""
CALLS_PER_LEASE = 4
"""Number of consecutive calls that may time out within a lease."""


def open_metadata_store(
    environment: Environment,
    configs: Configs,
    partition_of: Callable[[Write], int],
    *,
    connect: Callable[[EtcdSettings, int], Etcd] | None = None,
    open_upstream: OpenUpstream | None = None,
) -> MetadataStore:
    """The store that `kshare.metadata.store` names; StorageFailure or InvalidConfig if it cannot be opened.

    `partition_of` gives the partition of metadata of a row: CATALOG, or 0 to GROUP_PARTITIONS - 1. `connect` makes a
    client of etcd from its settings and the time limit of a call in milliseconds; by default a gRPC client.
    `open_upstream` makes the client of the existing cluster.
    """
    name, lease_ms = configs.text("kshare.metadata.store"), configs.integer("kshare.coordinator.lease.ms")
    if name == "rocksdb":
        from kshare_coordinator.metadata.rocksdb_store import RocksDbMetadataStore

        return RocksDbMetadataStore(environment.open_store(STORE_NAME), FAMILY, partition_of)
    if name == "kafka":
        assert open_upstream is not None, "kshare.metadata.store=kafka needs the client of the existing cluster"
        from kshare_coordinator.metadata.upstream.store import UpstreamMetadataStore
        from kshare_upstream.topics import Replicas

        return UpstreamMetadataStore(
            open_upstream(),
            topic_prefix=configs.text("kshare.upstream.topic.prefix"),
            replicas=Replicas.of(configs),
            lease_ms=lease_ms,
            now_ms=environment.clock.now_ms,
        )
    prefix = configs.text("kshare.metadata.etcd.prefix")
    if not prefix:
        raise InvalidConfig("kshare.metadata.etcd.prefix must not be empty; /kshare/ is the usual one")
    from kshare_coordinator.metadata.etcd.grpc_etcd import GrpcEtcd
    from kshare_coordinator.metadata.etcd_store import EtcdMetadataStore

    settings, time_limit_ms = etcd_settings(configs), lease_ms // CALLS_PER_LEASE
    etcd = GrpcEtcd(settings, time_limit_ms=time_limit_ms) if connect is None else connect(settings, time_limit_ms)
    return EtcdMetadataStore(etcd, prefix=prefix, lease_ms=lease_ms)
