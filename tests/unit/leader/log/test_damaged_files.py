"""Damage to a leader's files: all confirmed records are served, or the damage is reported."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from kshare_core.errors import ErrorCode, StorageFailure
from kshare_core.identifiers import TopicPartition
from kshare_core.leader_epochs import EpochEntry
from kshare_leader.engine.embedded import rows_below
from kshare_leader.handlers.delete_records import DeleteRecordsHandler
from kshare_leader.handlers.fetch import FetchHandler
from kshare_leader.log import keys
from kshare_leader.log.deleted_topics.stray_topics import StrayTopics
from kshare_leader.log.partition_log import PartitionLog
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_leader.log.producers import pending_appends
from kshare_leader.log.store_identity import StoreIdentity
from kshare_leader.log.tail import TailCache
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_runtime.large_values.rocks import FOLDER, RocksValueFileStore
from kshare_runtime.memory_store import DiskEvents, MemoryDisk, MemoryStore
from kshare_runtime.ports import Write
from kshare_runtime.rocks_store import RocksStore
from kshare_wire.record_reading import open_records
from support.leader.log.leader_logs import KEY, NODE_ID, TOPIC, open_logs, topic, view_of
from support.runtime.damaged_files import written_bytes
from support.wire.record_building import build_batch, damage

SECOND = TopicPartition(TOPIC, 1)
BATCHES = 12
CONFIRMED = [b"%d.%d " % (batch, record) * 20 for batch in range(BATCHES) for record in range(5)]
FILE_BYTES = 3_500
PLACES = 12
"""Places in each file that are damaged."""
PLACES_IN_BATCHES = 6


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


async def fill(logs: PartitionLogs, batches: range = range(BATCHES)) -> None:
    for batch in batches:
        for key in (KEY, SECOND):
            await logs.append(key, memoryview(build_batch(CONFIRMED[5 * batch : 5 * batch + 5])))


def all_values(log: PartitionLog) -> list[bytes | None]:
    """What a reader gets that goes from batch to batch."""
    found: list[bytes | None] = []
    offset = log.log_start_offset
    while offset < log.high_watermark:
        (batch,) = log.read(offset, 1)
        found.extend([record.value for record in open_records(batch.data)])
        offset = batch.last_offset + 1
    return found


def opened(path: Path, batches_in_files: bool) -> RocksStore | RocksValueFileStore:
    store = RocksStore(path)
    if not batches_in_files:
        return store
    prefix_bytes = keys.PARTITION_PREFIX_BYTES
    return RocksValueFileStore(store, family=keys.LOG, prefix_bytes=prefix_bytes, from_bytes=1, file_bytes=FILE_BYTES)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a kill -9 leaves of a store with tables and a write-ahead log."""
    return crashed_store(tmp_path_factory.mktemp("stores"), batches_in_files=False)


@pytest.fixture(scope="module")
def crashed_with_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, where all batches lie in files."""
    return crashed_store(tmp_path_factory.mktemp("stores"), batches_in_files=True)


def crashed_store(directory: Path, *, batches_in_files: bool) -> Path:
    async def test() -> None:
        for half in (range(BATCHES // 2), range(BATCHES // 2, BATCHES)):
            store = opened(directory / "running", batches_in_files)  # opening it moves its log into tables
            logs = open_logs(store)
            await fill(logs, half)
            shutil.rmtree(directory / "crashed", ignore_errors=True)
            shutil.copytree(directory / "running", directory / "crashed")
            logs.close()
            store.close()

    run(test())
    return directory / "crashed"


def flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1 << place % 8
    return bytes(changed)


def cut_off(data: bytes, place: int) -> bytes:
    return data[:place]


def outcome(path: Path, *, batches_in_files: bool = False) -> str:
    """Whether the store was refused, or how each partition is served."""
    try:
        store = opened(path, batches_in_files)
    except StorageFailure as failure:
        assert str(path) in str(failure)
        return "refused"
    reports: list[str] = []
    try:
        logs = open_logs(store, report=reports.append, rows=rows_below(store))
        found = []
        for key in (KEY, SECOND):
            log = logs.find(key)
            if log is None:
                assert any(f"partition {key.partition} of topic" in problem for problem in logs.problems())
                found.append("offline")
                continue
            try:
                assert all_values(log) == CONFIRMED, "confirmed records are missing, and nobody was told"
                found.append("served")
            except StorageFailure:
                assert any(log.name in report for report in reports)
                found.append("damaged")
        return " ".join(found)
    finally:
        store.close()


@pytest.mark.parametrize("how", [flipped, cut_off])
@pytest.mark.parametrize("pattern", ["*.log", "*.sst", "MANIFEST-*", "CURRENT"])
def test_wherever_a_file_is_damaged_nothing_is_lost_in_silence(
    crashed: Path, tmp_path: Path, pattern: str, how: Callable[[bytes, int], bytes]
) -> None:
    outcomes = outcomes_of_damage(crashed, tmp_path, pattern, how)
    assert any(found != "served served" for found in outcomes), "the damage was really there"


@pytest.mark.parametrize("how", [flipped, cut_off])
def test_damage_to_a_file_of_batches_is_found_where_it_is(
    crashed_with_files: Path, tmp_path: Path, how: Callable[[bytes, int], bytes]
) -> None:
    """Every byte there is a batch's, and only that partition is affected."""
    outcomes = outcomes_of_damage(
        crashed_with_files, tmp_path, f"{FOLDER}/*/*", how, PLACES_IN_BATCHES, batches_in_files=True
    )
    assert set(outcomes) <= {"damaged served", "served damaged", "offline served", "served offline"}
    assert sum(outcomes.values()) >= 4 * PLACES_IN_BATCHES


def test_a_damaged_first_batch_does_not_keep_an_older_store_from_its_node_or_deleted_topics_on_disk(
    crashed_with_files: Path, tmp_path: Path
) -> None:
    """Which partitions a store has is told by its keys, also where the batches cannot be read."""
    path = shutil.copytree(crashed_with_files, tmp_path / "copy")
    for file in path.glob(f"{FOLDER}/*/*"):
        file.write_bytes(bytes(file.stat().st_size))
    store = opened(path, batches_in_files=True)
    store.write([Write(keys.META, keys.NODE_ID_KEY, None)])
    with pytest.raises(StorageFailure):
        list(store.scan(keys.LOG, b""))
    rows = rows_below(store)
    try:
        assert StoreIdentity(store, NODE_ID, rows=rows).problem(view_of(topic())) is None
        assert StrayTopics(store, rows=rows).follow(CatalogView(), view_of()) == [TOPIC]
    finally:
        store.close()


def outcomes_of_damage(
    crashed: Path,
    tmp_path: Path,
    pattern: str,
    how: Callable[[bytes, int], bytes],
    count: int = PLACES,
    *,
    batches_in_files: bool = False,
) -> dict[str, int]:
    """How often each outcome came."""
    places = random.Random(pattern)
    outcomes: dict[str, int] = {}
    files = [file.relative_to(crashed) for file in sorted(crashed.glob(pattern)) if file.stat().st_size]
    assert files
    for name in files:
        for number in range(count):
            path = shutil.copytree(crashed, tmp_path / f"{name.name}-{number}")
            data = (path / name).read_bytes()
            (path / name).write_bytes(how(data, places.randrange(written_bytes(path / name))))
            found = outcome(path, batches_in_files=batches_in_files)
            outcomes[found] = outcomes.get(found, 0) + 1
            shutil.rmtree(path)
    return outcomes


def test_undamaged_files_are_served_whole(crashed: Path, crashed_with_files: Path, tmp_path: Path) -> None:
    assert outcome(shutil.copytree(crashed, tmp_path / "copy")) == "served served"
    copy = shutil.copytree(crashed_with_files, tmp_path / "copy with files")
    assert outcome(copy, batches_in_files=True) == "served served"


async def fetch(logs: PartitionLogs, offset: int) -> tuple[int, int]:
    """The error code and the bytes of a Fetch of KEY's partition."""
    partition = leader_pb2.FetchRequest.Partition(
        topic_id=TOPIC,
        partition=KEY.partition,
        current_leader_epoch=-1,
        fetch_offset=offset,
        partition_max_bytes=1 << 20,
    )
    request = leader_pb2.FetchRequest(max_bytes=1 << 20, partitions=[partition])
    answer, payload = await FetchHandler(logs)(request, memoryview(b""))
    (found,) = answer.partitions
    return found.error_code, sum(len(piece) for piece in payload)


async def delete_before(logs: PartitionLogs, offset: int) -> None:
    """DeleteRecords of KEY's partition."""
    partition = leader_pb2.DeleteRecordsRequest.Partition(topic_id=TOPIC, partition=KEY.partition, offset=offset)
    request = leader_pb2.DeleteRecordsRequest(partitions=[partition])
    (deleted,) = (await DeleteRecordsHandler(logs)(request, memoryview(b""))).results
    assert (deleted.error_code, deleted.low_watermark) == (ErrorCode.NONE, offset)


@pytest.mark.parametrize(
    ("at", "form", "value"),
    [
        pytest.param(70, ">B", 0xFF, id="a record"),
        pytest.param(23, ">i", 400, id="the last offset"),
        pytest.param(35, ">q", 1, id="the newest time"),
        pytest.param(0, ">q", 11, id="the base offset"),
        pytest.param(8, ">i", 100, id="the length"),
        pytest.param(16, ">B", 1, id="the version"),
        pytest.param(0, "", -1, id="bytes after its end"),
    ],
)
def test_a_damaged_batch_is_never_served_and_the_rest_is(
    at: int, form: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What comes after the last row of the active segment is read when the log is opened; here that is nothing.
    monkeypatch.setattr(pending_appends, "INDEX_INTERVAL_BYTES", 1)

    async def test() -> None:
        disk = MemoryDisk()
        logs = open_logs(disk.open_store("leader"))
        await fill(logs)
        logs.close()
        disk.crash()
        store = disk.open_store("leader")
        place = keys.long_key(keys.partition_prefix(KEY), 10)
        stored = store.get(keys.LOG, place)
        assert stored is not None
        damaged = stored + b"more" if value < 0 else damage(stored, at, form, value, fix_crc=False)
        store.write([Write(keys.LOG, place, damaged)])
        reports: list[str] = []
        tails = TailCache(partition_limit_bytes=0, node_limit_bytes=0)
        logs = open_logs(store, topic(), report=reports.append, tails=tails)

        log = logs.lookup(KEY)
        before = sum(batch.length for batch in log.read(0, 1 << 20))
        assert [batch.base_offset for batch in log.read(0, 1 << 20)] == [0, 5]
        assert await fetch(logs, 0) == (ErrorCode.NONE, before)
        assert reports == []
        for offset in (10, 12, 14):
            for _ in range(3):
                assert await fetch(logs, offset) == (ErrorCode.CORRUPT_MESSAGE, 0)
        assert 1 <= len(reports) <= 3
        assert all(log.name in report and "offset 10" in report for report in reports)
        code, size_bytes = await fetch(logs, 15)
        assert (code, size_bytes > 0) == (ErrorCode.NONE, True)
        assert all_values(logs.lookup(SECOND)) == CONFIRMED
        assert (await logs.append(KEY, memoryview(build_batch()))).base_offset == 5 * BATCHES

    run(test())


def reopened_with_damage(store: MemoryStore, logs: PartitionLogs, base_offset: int) -> PartitionLogs:
    """The logs of the next start, before which a byte of a batch became wrong."""
    logs.close()
    place = keys.long_key(keys.partition_prefix(KEY), base_offset)
    stored = store.get(keys.LOG, place)
    assert stored is not None
    store.write([Write(keys.LOG, place, flipped(stored, len(stored) - 1))])
    return open_logs(store, topic(), tails=TailCache(partition_limit_bytes=0, node_limit_bytes=0))


@pytest.mark.parametrize("damaged", [0, 10, 5 * BATCHES - 10])
def test_a_damaged_batch_that_is_read_at_the_start_keeps_no_other_batch_from_being_served(damaged: int) -> None:
    """All batches come after the last row of the active segment."""

    async def test() -> None:
        store = MemoryDisk().open_store("leader")
        logs = open_logs(store)
        await fill(logs)
        sizes = [(segment.end_offset, segment.size_bytes) for segment in logs.lookup(KEY).segments]
        logs = reopened_with_damage(store, logs, damaged)
        log = logs.lookup(KEY)
        assert [(segment.end_offset, segment.size_bytes) for segment in log.segments] == sizes
        for offset in range(0, 5 * BATCHES, 5):
            code, size_bytes = await fetch(logs, offset)
            expected = ErrorCode.CORRUPT_MESSAGE if offset == damaged else ErrorCode.NONE
            assert (code, size_bytes > 0) == (expected, offset != damaged)
        assert (await logs.append(KEY, memoryview(build_batch()))).base_offset == 5 * BATCHES
        await delete_before(logs, damaged + 5)
        assert len(all_values(log)) == 5 * BATCHES + 1 - (damaged + 5)

    run(test())


def test_a_damaged_batch_that_holds_the_start_of_the_log_keeps_no_other_batch_from_being_served() -> None:
    async def test() -> None:
        store = MemoryDisk().open_store("leader")
        logs = open_logs(store)
        await fill(logs)
        logs.move_starts([(logs.lookup(KEY), 12)])
        sizes = [(segment.end_offset, segment.size_bytes) for segment in logs.lookup(KEY).segments]
        logs = reopened_with_damage(store, logs, 10)
        assert [(segment.end_offset, segment.size_bytes) for segment in logs.lookup(KEY).segments] == sizes
        assert (await fetch(logs, 12))[0] == ErrorCode.CORRUPT_MESSAGE
        assert (await fetch(logs, 15))[0] == ErrorCode.NONE

    run(test())


def test_a_damaged_last_batch_takes_its_partition_offline_since_the_end_of_the_log_is_unknown() -> None:
    async def test() -> None:
        store = MemoryDisk().open_store("leader")
        logs = open_logs(store)
        await fill(logs)
        logs = reopened_with_damage(store, logs, 5 * BATCHES - 5)
        assert logs.find(KEY) is None
        (problem,) = logs.problems()
        assert f"the batch at offset {5 * BATCHES - 5} of partition" in problem
        assert all_values(logs.lookup(SECOND)) == CONFIRMED

    run(test())


def test_a_damaged_last_batch_is_given_up_by_deleting_all_records_before_the_restart() -> None:
    """The leader stops before it has removed what lies below the start."""

    async def test() -> None:
        end_offset = 5 * BATCHES
        store = MemoryDisk().open_store("leader")
        logs = open_logs(store)
        await fill(logs)
        await delete_before(logs, end_offset)
        epochs = list(logs.lookup(KEY).leader_epochs)
        logs = reopened_with_damage(store, logs, end_offset - 5)
        log = logs.lookup(KEY)
        assert (log.log_start_offset, log.high_watermark, log.size_bytes) == (end_offset, end_offset, 0)
        assert list(log.leader_epochs) == epochs == [EpochEntry(3, 0)]
        assert await fetch(logs, end_offset) == (ErrorCode.NONE, 0)
        assert await log.offset_for_timestamp(0) is None
        assert (await logs.append(KEY, memoryview(build_batch([b"new"])))).base_offset == end_offset
        logs.close()
        log = open_logs(store, topic()).lookup(KEY)
        assert all_values(log) == [b"new"]
        assert log.remove_unreachable()
        prefix = keys.partition_prefix(KEY)
        left = [keys.number_of(key) for key, _ in store.scan(keys.LOG, prefix, keys.after_prefix(prefix))]
        assert left == [end_offset]

    run(test())


def test_a_damaged_last_batch_in_a_file_is_given_up_in_the_same_way(crashed_with_files: Path, tmp_path: Path) -> None:
    async def test() -> None:
        path = shutil.copytree(crashed_with_files, tmp_path / "copy")
        store = opened(path, batches_in_files=True)
        logs = open_logs(store, rows=rows_below(store))
        await delete_before(logs, 5 * BATCHES)
        logs.close()
        store.close()
        for file in (path / FOLDER / keys.partition_prefix(KEY).hex()).iterdir():
            file.write_bytes(bytes(file.stat().st_size))
        store = opened(path, batches_in_files=True)
        try:
            log = open_logs(store, rows=rows_below(store)).lookup(KEY)
            assert (log.log_start_offset, log.high_watermark) == (5 * BATCHES, 5 * BATCHES)
        finally:
            store.close()

    run(test())


def test_batches_that_were_appended_after_all_records_were_deleted_have_to_be_whole() -> None:
    async def test() -> None:
        store = MemoryDisk().open_store("leader")
        logs = open_logs(store)
        await fill(logs)
        await delete_before(logs, 5 * BATCHES)
        await logs.append(KEY, memoryview(build_batch()))
        logs = reopened_with_damage(store, logs, 5 * BATCHES)
        assert logs.find(KEY) is None

    run(test())


def test_damage_to_a_file_of_batches_takes_a_partition_offline_only_at_its_last_batch(
    crashed_with_files: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(crashed_with_files, tmp_path / "copy")
    folder, other = sorted((path / FOLDER).iterdir())
    first = min(folder.iterdir())
    first.write_bytes(flipped(first.read_bytes(), 70))
    assert outcome(path, batches_in_files=True) == "damaged served"
    last = max(other.iterdir())
    last.write_bytes(flipped(last.read_bytes(), last.stat().st_size - 1))
    assert outcome(path, batches_in_files=True) == "damaged offline"


def test_a_batch_that_was_read_wrongly_once_keeps_its_timestamps() -> None:
    class WrongOnce(DiskEvents):
        """The first read of a batch in the middle has a wrong bit."""

        count = 0

        def value_read(self, family: str, key: bytes, value: bytes) -> bytes:
            is_wrong = family == keys.LOG and keys.number_of(key) == 10 and not self.count
            self.count += is_wrong
            return flipped(value, 70) if is_wrong else value

    async def test() -> None:
        disk = MemoryDisk()
        logs = open_logs(disk.open_store("leader"))
        for base_offset in range(0, 20, 5):
            batch = build_batch([b"x"] * 5, timestamps_ms=[1_000 if base_offset == 10 else 1] * 5)
            await logs.append(KEY, memoryview(batch))
        logs.close()
        disk.crash()
        disk.events = events = WrongOnce()
        log = open_logs(disk.open_store("leader"), topic()).lookup(KEY)
        assert events.count == 1
        assert await log.offset_for_timestamp(500) == (1_000, 10)

    run(test())


def test_damaged_files_of_batches_are_removed_with_the_records_in_them(
    crashed_with_files: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(crashed_with_files, tmp_path / "copy")
    for folder in (path / FOLDER).iterdir():
        for file in sorted(folder.iterdir())[:-1]:
            file.write_bytes(bytes(file.stat().st_size))
    store = opened(path, batches_in_files=True)
    try:
        log = open_logs(store, rows=rows_below(store)).lookup(KEY)
        change = log.plan_start(5 * (BATCHES - 2))
        assert change is not None
        store.write(change.writes)
        log.commit_start(change)
        assert log.remove_unreachable()
        prefix = keys.partition_prefix(KEY)
        left = [keys.number_of(key) for key, _ in rows_below(store).scan(keys.LOG, prefix, keys.after_prefix(prefix))]
        assert left == [5 * (BATCHES - 2), 5 * (BATCHES - 1)]
    finally:
        store.close()
