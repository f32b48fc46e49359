"""Which batches of a leader lie in files: large ones of topics that are not compacted, until retention removes them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from kshare_leader.engine.embedded import with_value_files
from kshare_leader.log import keys
from kshare_runtime.large_values.rocks import FOLDER, RocksValueFileStore
from kshare_runtime.large_values.store import FROM_BYTES
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.rocks_store import RocksStore
from support.leader.log.leader_logs import KEY, open_logs, topic
from support.wire.record_building import build_batch


def file_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in (path / FOLDER).rglob("*") if file.is_file())


@pytest.mark.parametrize(
    ("configs", "value_bytes", "are_in_files"),
    [({}, FROM_BYTES, True), ({}, 1_000, False), ({"cleanup.policy": "compact"}, FROM_BYTES, False)],
)
def test_large_batches_lie_in_files(
    tmp_path: Path, configs: dict[str, str], value_bytes: int, are_in_files: bool
) -> None:
    async def test() -> None:
        store = with_value_files(RocksStore(tmp_path))
        logs = open_logs(store, topic(configs=configs))
        batches = [build_batch([b"%d" % number * value_bytes], keys=[b"k"]) for number in range(3)]
        for batch in batches:
            await logs.append(KEY, memoryview(batch))
        assert (file_bytes(tmp_path) == sum(map(len, batches))) == are_in_files
        logs.close()
        logs = open_logs(store, topic(configs=configs))
        log = logs.lookup(KEY)
        assert [batch.length for batch in log.read(0, 1 << 30)] == list(map(len, batches))
        change = log.plan_start(3)
        assert change is not None
        store.write(change.writes)
        log.commit_start(change)
        log.remove_unreachable()
        while any(names for _, _, names in os.walk(tmp_path / FOLDER)):  # a thread unlinks them
            await asyncio.sleep(0.001)
        logs.close()
        store.close()

    asyncio.run(test())


def test_a_store_in_memory_has_no_files(tmp_path: Path) -> None:
    store = MemoryDisk().open_store("leader")
    assert with_value_files(store) is store
    on_disk = with_value_files(RocksStore(tmp_path))
    assert isinstance(on_disk, RocksValueFileStore) and on_disk.families() == [] and keys.LOG not in on_disk.families()
    on_disk.close()
