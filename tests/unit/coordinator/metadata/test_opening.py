"""The metadata store that the configs name, and the configs of etcd that are refused."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from kshare_coordinator.machine import records
from kshare_coordinator.metadata.etcd.port import Etcd
from kshare_coordinator.metadata.etcd.settings import EtcdSettings, etcd_settings
from kshare_coordinator.metadata.etcd_store import EtcdMetadataStore
from kshare_coordinator.metadata.opening import FAMILY, STORE_NAME, open_metadata_store
from kshare_coordinator.metadata.port import CATALOG, GROUP_PARTITIONS
from kshare_coordinator.metadata.rocksdb_store import RocksDbMetadataStore
from kshare_core.configs import InvalidConfig, process_configs
from kshare_core.errors import StorageFailure
from kshare_runtime.checksummed_rows import ChecksummedRows
from kshare_runtime.clock import SystemClock
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import Environment, Write
from support.metadata.memory_etcd import MemoryEtcd

ETCD = {"kshare.metadata.store": "etcd", "kshare.metadata.etcd.endpoints": "a:2379, [::1]:1"}


def environment(disk: MemoryDisk) -> Environment:
    return Environment(clock=SystemClock(), random=random.Random(1), open_store=disk.open_store)


def settings_of(**texts: str) -> EtcdSettings:
    return etcd_settings(process_configs({**ETCD, **texts})[0])


def test_the_default_is_rocksdb_and_its_rows_are_those_of_before() -> None:
    """A data directory of an earlier version opens: same store, same family, same keys. New values have a checksum."""
    disk = MemoryDisk()
    old = disk.open_store("coordinator")
    config = records.write_of(records.cluster_number(records.EPOCH_COUNTER, 7))
    old.write([config, Write("coordinator", b"k", b"of a group")])
    old.close()

    async def scene() -> None:
        store = open_metadata_store(
            environment(disk), process_configs({})[0], lambda row: 3 if row.key == b"k" else CATALOG
        )
        assert isinstance(store, RocksDbMetadataStore)
        rows = store.rows()
        assert (rows[CATALOG], rows[3]) == ([config], [Write("coordinator", b"k", b"of a group")])
        assert sorted(rows) == [CATALOG, *range(GROUP_PARTITIONS)]
        number = records.write_of(records.cluster_number(records.EPOCH_COUNTER, 8))
        store.append({CATALOG: [number], 3: [Write("coordinator", b"k", None)]})
        disk.fail_next_writes(1)
        with pytest.raises(StorageFailure):
            store.append({CATALOG: [config], 3: [Write("coordinator", b"k", b"back")]})
        await store.stop()
        plain = disk.open_store("coordinator")
        assert plain.families() == ["coordinator"]
        assert list(ChecksummedRows(plain).scan("coordinator", b"")) == [(number.key, number.value)]
        assert list(plain.scan("coordinator", b"")) != [(number.key, number.value)]

    asyncio.run(scene())
    assert (STORE_NAME, FAMILY) == ("coordinator", records.FAMILY)


def test_etcd_by_its_configs() -> None:
    async def scene() -> None:
        asked: list[tuple[EtcdSettings, int]] = []

        def connect(settings: EtcdSettings, time_limit_ms: int) -> Etcd:
            asked.append((settings, time_limit_ms))
            return MemoryEtcd().client()

        configs = process_configs({**ETCD, "kshare.coordinator.lease.ms": "4000"})[0]
        store = open_metadata_store(environment(MemoryDisk()), configs, lambda _: CATALOG, connect=connect)
        assert isinstance(store, EtcdMetadataStore)
        assert asked == [(EtcdSettings(endpoints=("a:2379", "[::1]:1")), 1_000)]
        await store.stop()

    asyncio.run(scene())


def test_certificates_are_read_and_secrets_are_not_shown(tmp_path: Path) -> None:
    names = ("ca", "certificate", "key")
    for name in names:
        (tmp_path / name).write_bytes(f"the {name}".encode())
    locations = {f"kshare.metadata.etcd.{name}.location": str(tmp_path / name) for name in names}
    found = settings_of(
        **locations, **{"kshare.metadata.etcd.username": "kshare", "kshare.metadata.etcd.password": "secret"}
    )
    assert (found.ca, found.certificate, found.key) == (b"the ca", b"the certificate", b"the key")
    assert (found.username, found.password) == ("kshare", "secret")
    assert "secret" not in repr(found)
    assert "the key" not in repr(found)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"kshare.metadata.etcd.endpoints": ""}, "needs kshare.metadata.etcd.endpoints"),
        ({"kshare.metadata.etcd.endpoints": "a:1,b"}, "'b' is not host:port"),
        ({"kshare.metadata.etcd.endpoints": "http://a:1"}, "'http://a:1' is not host:port"),
        ({"kshare.metadata.etcd.endpoints": "a:70000"}, "'a:70000' is not host:port"),
        ({"kshare.metadata.etcd.endpoints": "a:1,"}, "'' is not host:port"),
        ({"kshare.metadata.etcd.ca.location": "/nowhere/ca.pem"}, "/nowhere/ca.pem cannot be read: No such file"),
        ({"kshare.metadata.etcd.key.location": __file__}, "need each other"),
        (
            {
                "kshare.metadata.etcd.key.location": __file__,
                "kshare.metadata.etcd.certificate.location": __file__,
            },
            "needs kshare.metadata.etcd.ca.location",
        ),
        ({"kshare.metadata.etcd.password": "secret"}, "needs kshare.metadata.etcd.username"),
        ({"kshare.metadata.etcd.prefix": ""}, "prefix must not be empty"),
    ],
)
def test_what_is_refused_is_named(texts: dict[str, str], message: str) -> None:
    configs = process_configs({**ETCD, **texts})[0]
    with pytest.raises(InvalidConfig, match=message):
        open_metadata_store(environment(MemoryDisk()), configs, lambda _: CATALOG)
