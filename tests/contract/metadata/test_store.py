"""The contract of a MetadataStore: RocksDB, memory, etcd and its model, Kafka and its model."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kshare_coordinator.metadata.etcd_store import EtcdMetadataStore
from kshare_coordinator.metadata.port import CATALOG, CoordinatorMember, MetadataStore
from kshare_coordinator.metadata.rocksdb_store import RocksDbMetadataStore
from kshare_coordinator.metadata.upstream.store import UpstreamMetadataStore
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import Write
from kshare_runtime.rocks_store import RocksStore
from support.metadata.etcd_backends import Backend, play_on, until
from support.metadata.upstream_backends import UpstreamBackend, play_on_upstream
from support.upstream.faulty_upstream import FaultyUpstream

FAMILY = "coordinator"
PARTITIONS = 3
MEMBER = CoordinatorMember(7, "life", "127.0.0.1:1")
LIMITS = {"journal_limit": 4, "value_bytes_limit": 100}
OpenStore = Callable[[], MetadataStore]
Scene = Callable[[OpenStore], Awaitable[None]]
KINDS = ["rocksdb", "memory", "model of etcd", "etcd", "model of kafka", "kafka"]


def partition_of(row: Write) -> int:
    """The first letter of a test's key is its partition; the catalog's is c."""
    return CATALOG if row.key[:1] == b"c" else int(row.key[:1])


def play(kind: str, scene: Scene) -> None:
    """Plays it with stores that keep the same rows, one after the other."""
    if "etcd" in kind:

        async def with_etcd(backend: Backend) -> None:
            await scene(
                lambda: EtcdMetadataStore(
                    backend.client(), prefix="/t/", lease_ms=2_000, group_partitions=PARTITIONS, **LIMITS
                )
            )

        play_on("etcd" if kind == "etcd" else "memory", with_etcd)
        return
    if "kafka" in kind:

        async def with_upstream(backend: UpstreamBackend) -> None:
            await scene(
                lambda: UpstreamMetadataStore(
                    FaultyUpstream(backend.client()),
                    topic_prefix=backend.topic_prefix,
                    lease_ms=2_000,
                    now_ms=lambda: 0,
                    group_partitions=PARTITIONS,
                    journal_limit=4,
                    piece_bytes=100,
                )
            )

        play_on_upstream("kafka" if kind == "kafka" else "memory", with_upstream)
        return

    async def main(open_store: OpenStore) -> None:
        await asyncio.wait_for(scene(open_store), 30)

    with tempfile.TemporaryDirectory() as folder:
        disk = MemoryDisk()

        def open_store() -> MetadataStore:
            store = disk.open_store("coordinator") if kind == "memory" else RocksStore(Path(folder) / "coordinator")
            return RocksDbMetadataStore(store, FAMILY, partition_of, group_partitions=PARTITIONS)

        asyncio.run(main(open_store))


class Recorder:
    """A listener that keeps what it was told, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.catalog: Sequence[Write] = ()
        self.gained_rows: dict[int, Sequence[Write]] = {}
        self.members: list[tuple[Sequence[CoordinatorMember], Mapping[int, int]]] = []

    def catalog_loaded(self, rows: Sequence[Write]) -> None:
        self.calls.append("loaded")
        self.catalog = rows

    def catalog_changed(self, writes: Sequence[Write]) -> None:
        self.calls.append("changed")

    def gained(self, partition: int, rows: Sequence[Write]) -> None:
        self.calls.append(f"gained {partition}")
        self.gained_rows[partition] = rows

    def lost(self, partition: int) -> None:
        self.calls.append(f"lost {partition}")

    def members_changed(self, members: Sequence[CoordinatorMember], owners: Mapping[int, int]) -> None:
        self.members.append((members, owners))


def owns_all(store: MetadataStore) -> bool:
    return all(store.owns(partition) for partition in range(CATALOG, PARTITIONS))


async def append(store: MetadataStore, writes: Mapping[int, Sequence[Write]]) -> None:
    waiting = store.append(writes)
    if waiting is not None:
        await waiting


def row(key: str, value: str | None = "v") -> Write:
    return Write(FAMILY, key.encode(), None if value is None else value.encode())


@pytest.mark.parametrize("kind", KINDS)
def test_the_only_coordinator_gains_everything(kind: str) -> None:
    async def scene(open_store: OpenStore) -> None:
        store, told = open_store(), Recorder()
        assert not any(store.owns(partition) for partition in range(CATALOG, PARTITIONS))
        await store.start(MEMBER, told)
        assert told.calls[0] == "loaded"
        await until(lambda: owns_all(store))
        assert told.calls == ["loaded", "gained -1", "gained 0", "gained 1", "gained 2"]
        assert not store.owns(PARTITIONS)
        await until(lambda: told.members[-1:] == [([MEMBER], dict.fromkeys(range(CATALOG, PARTITIONS), 7))])
        assert store.problems() == []
        assert {partition: list(rows) for partition, rows in store.rows().items()} == {p: [] for p in (-1, 0, 1, 2)}
        await store.stop()
        assert not any(store.owns(partition) for partition in range(CATALOG, PARTITIONS))
        assert not [call for call in told.calls if call.startswith("lost")], "who stops is not told what it gave back"

    play(kind, scene)


@pytest.mark.parametrize("kind", KINDS)
def test_an_append_is_there_in_rows_and_after_a_restart(kind: str) -> None:
    async def scene(open_store: OpenStore) -> None:
        store = open_store()
        await store.start(MEMBER, Recorder())
        await until(lambda: owns_all(store))
        await append(store, {CATALOG: [row("c1"), row("c2")], 0: [row("0a")], 2: [row("2a", ""), row("2b")]})
        await append(store, {CATALOG: [row("c2", None)], 2: [row("2b", "new"), row("2c", None)], 1: []})
        await append(store, {})
        expected = {CATALOG: [row("c1")], 0: [row("0a")], 1: [], 2: [row("2a", ""), row("2b", "new")]}
        assert {partition: sorted(rows) for partition, rows in store.rows().items()} == expected
        await store.stop()
        store, told = open_store(), Recorder()
        await store.start(MEMBER, told)
        await until(lambda: owns_all(store))
        assert list(told.catalog) == expected[CATALOG]
        assert {p: sorted(rows) for p, rows in told.gained_rows.items()} == {**expected, CATALOG: []}
        assert {partition: sorted(rows) for partition, rows in store.rows().items()} == expected
        await store.stop()

    play(kind, scene)


Append = dict[int, list[Write]]


@st.composite
def appends(draw: st.DrawFn) -> list[Append]:
    def writes(partition: int) -> st.SearchStrategy[list[Write]]:
        letter = "c" if partition == CATALOG else str(partition)
        key = st.sampled_from([f"{letter}{name}" for name in "abcd"])
        value = st.one_of(st.none(), st.text("xyz", max_size=5), st.integers(80, 400).map(lambda size: "x" * size))
        return st.lists(st.builds(row, key, value), max_size=3, unique_by=lambda one: one.key)

    return draw(st.lists(st.fixed_dictionaries({}, optional={p: writes(p) for p in (-1, 0, 1, 2)}), max_size=30))


@pytest.mark.parametrize("kind", ["memory", "model of etcd", "model of kafka"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_rows_are_those_of_a_dictionary(kind: str, data: st.DataObject) -> None:
    """With values in pieces, snapshots after a few appends, and restarts: the rows are what was appended, in order."""
    script = data.draw(appends())
    restarts = data.draw(st.lists(st.integers(0, max(0, len(script) - 1)), max_size=3))

    async def scene(open_store: OpenStore) -> None:
        naive: dict[int, dict[bytes, bytes]] = {p: {} for p in range(CATALOG, PARTITIONS)}
        store = open_store()
        await store.start(MEMBER, Recorder())
        await until(lambda: owns_all(store))
        for index, writes in enumerate(script):
            await append(store, writes)
            for partition, found in writes.items():
                for one in found:
                    naive[partition].pop(one.key, None)
                    if one.value is not None:
                        naive[partition][one.key] = one.value
            if index in restarts:
                await store.stop()
                store, told = open_store(), Recorder()
                await store.start(MEMBER, told)
                await until(lambda store=store: owns_all(store))  # type: ignore[misc]
                gained = {**told.gained_rows, CATALOG: told.catalog}
                assert {p: {one.key: one.value for one in rows} for p, rows in gained.items()} == naive
        assert {p: {one.key: one.value for one in rows} for p, rows in store.rows().items()} == naive
        await store.stop()

    play(kind, scene)
