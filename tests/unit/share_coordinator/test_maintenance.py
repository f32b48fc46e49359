"""The background pass, backups and damage of one state partition, at a whole node."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kshare_core.configs import Configs
from kshare_core.configs.broker import BROKER_CONFIGS
from kshare_core.errors import ErrorCode, StorageFailure
from kshare_core.identifiers import SharePartitionKey, state_partition_of
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import BACKUP_STATE
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import Environment, KeyValueStore, Write
from kshare_runtime.rocks_store import RocksStore
from kshare_runtime.store_backups import BACKUPS_LIMIT
from kshare_runtime.store_files import examine
from kshare_share_coordinator.checksummed_store import ChecksummedStore
from kshare_share_coordinator.maintenance.opening import open_state_store
from kshare_share_coordinator.maintenance.verification import verify
from kshare_share_coordinator.state_store import family_of
from support.runtime.damaged_files import scratch_directory
from support.runtime.sync_in_loop import SyncInLoop
from support.share_coordinator.single import SingleShareCoordinator
from support.simulation.loop import VirtualLoop

INTERVAL_MS = 300_000
MANY = [(10 * i, 10 * i, 2, 1) for i in range(20)]


def run(test: Callable[[], Awaitable[None]]) -> None:
    loop = VirtualLoop(time_limit=50_000)

    async def main() -> None:
        await test()

    loop.run(main())
    assert loop.problems == []


def rows_of(store: KeyValueStore, key: SharePartitionKey) -> int:
    """How many records of the share-partition lie in the store."""
    family = family_of(state_partition_of(key, 50))
    prefix = b"\x00" + bytes([len(key.group_id)]) + key.group_id.encode() + key.topic_id + key.partition.to_bytes(4)
    return sum(1 for _ in store.scan(family, prefix, prefix + b"\xff"))


def test_a_cold_share_partition_gets_a_snapshot_and_a_warm_one_does_not() -> None:
    async def test() -> None:
        node = SingleShareCoordinator(MemoryDisk().open_store)
        await node.start()
        cold, warm = node.key(0), node.key(1)
        for key in (cold, warm):
            await node.initialize(key)
            await node.write(key, MANY)
            for offset in (900, 910, 920):
                await node.write(key, [(offset, offset, 2, 1)])
        before = await node.read(cold)
        assert (rows_of(node.store, cold), rows_of(node.store, warm)) == (4, 4)
        for step in range(3):
            await asyncio.sleep(INTERVAL_MS / 1000)
            await node.write(warm, [(1000 + 10 * step, 1000 + 10 * step, 2, 1)])
        assert (rows_of(node.store, cold), rows_of(node.store, warm)) == (1, 7)
        assert await node.read(cold) == before
        await node.restart()
        assert await node.read(cold) == before
        assert node.problems() == []
        await node.stop()

    run(test)


def test_the_pass_reports_a_corrupt_share_partition_before_anybody_needs_it() -> None:
    async def test() -> None:
        node = SingleShareCoordinator(MemoryDisk().open_store)
        await node.start()
        for number in range(700):  # more than one slice of some state partitions
            await node.initialize(node.key(number))
        bad = node.key(3)
        family = family_of(state_partition_of(bad, 50))
        stored = [key for key, _ in node.store.scan(family, b"", b"\x80") if key.endswith(b"\x00\x00\x00\x03\x00\x00")]
        whole = {key: node.store.get(family, key) for key in stored}
        node.store.write([Write(family, key, b"?") for key in stored])
        index = next(node.store.scan("state-7", b"\x80"))[0]
        node.store.write([Write("state-7", index, b"?" * 20)])
        assert node.problems() == []
        await asyncio.sleep(60)
        problems = node.problems()
        assert len(problems) == 2
        assert any(str(bad) in problem for problem in problems)
        assert any(index.hex() in problem for problem in problems)
        assert (await node.read(node.key(4))).error_code == ErrorCode.NONE
        node.store.write([Write(family, key, value) for key, value in whole.items()])
        await asyncio.sleep(INTERVAL_MS / 1000 + 60)
        assert all(str(bad) not in problem for problem in node.problems()), "it can be read again"
        await node.stop()

    run(test)


def test_a_full_disk_delays_snapshots_of_cold_share_partitions_only() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        node = SingleShareCoordinator(disk.open_store)
        await node.start()
        await node.initialize(node.key(0))
        await node.write(node.key(0), MANY)
        await node.write(node.key(0), [(900, 900, 2, 1)])
        before = await node.read(node.key(0))
        disk.fail_next_writes(1_000_000)
        await asyncio.sleep(3 * INTERVAL_MS / 1000)
        assert rows_of(node.store, node.key(0)) == 2
        disk.fail_next_writes(0)
        await asyncio.sleep(3 * INTERVAL_MS / 1000)
        assert rows_of(node.store, node.key(0)) == 1
        assert await node.read(node.key(0)) == before
        await node.stop()

    run(test)


def on_rocks(directory: Path) -> Callable[[str], RocksStore]:
    return lambda name: RocksStore(directory / name, isolate_damage=True, new_sync=SyncInLoop)


def damage_a_table(directory: Path, key: SharePartitionKey, *, keep: int) -> None:
    """Cuts the newest table of the share-partition's state partition to `keep` bytes less than it has."""
    RocksStore(directory / "share-coordinator").close()  # moves the log into tables
    files = examine(directory / "share-coordinator")
    assert files is not None
    name = family_of(state_partition_of(key, 50))
    (tables,) = [family.tables for family in files.manifest.families.values() if family.name == name]
    table = directory / "share-coordinator" / f"{max(tables):06}.sst"
    table.write_bytes(table.read_bytes()[:keep])


@pytest.mark.parametrize("keep", [-1, 10])
def test_one_damaged_state_partition_is_refused_and_the_others_are_served(keep: int) -> None:
    async def test() -> None:
        with scratch_directory() as directory:
            node = SingleShareCoordinator(on_rocks(directory))
            await node.start()
            keys = [node.key(number) for number in range(50)]
            for key in keys:
                assert await node.initialize(key) == ErrorCode.NONE
            await node.stop()
            damage_a_table(directory, keys[5], keep=keep)
            number = state_partition_of(keys[5], 50)
            await node.restart()
            (problem,) = node.problems()
            assert f"state partition {number} is damaged" in problem and "kshare state import --replace" in problem
            for key in keys:
                is_damaged = state_partition_of(key, 50) == number
                expected = ErrorCode.KAFKA_STORAGE_ERROR if is_damaged else ErrorCode.NONE
                assert (await node.read(key)).error_code == expected
                assert await node.write(key, MANY) == expected
            assert str(number) in (await node.read(keys[5])).error_message
            await asyncio.sleep(600)
            assert node.problems() == [problem]
            await node.stop()

    run(test)


def test_a_store_that_cannot_be_opened_says_what_to_do() -> None:
    with scratch_directory() as directory:
        RocksStore(directory / "share-coordinator").close()
        (directory / "share-coordinator" / "CURRENT").write_bytes(b"")
        environment = Environment(clock=StillClock(), random=random.Random(1), open_store=on_rocks(directory))
        with pytest.raises(StorageFailure, match=r"nothing was changed.*`kshare state verify`.*`kshare state import`"):
            open_state_store(environment)


class StillClock:
    def now_ms(self) -> int:
        return 0


def test_a_backup_is_made_while_the_node_serves() -> None:
    async def test() -> None:
        with scratch_directory() as directory:
            node = SingleShareCoordinator(on_rocks(directory))
            await node.start()
            for number in range(20):
                await node.initialize(node.key(number))
            answer = await back_up(node, "one")
            assert (answer.error_code, answer.directory) == (0, str(directory / "backups" / "one"))
            for number in range(20, 40):
                await node.initialize(node.key(number))
            found = verify(ChecksummedStore(RocksStore(directory / "backups" / "one", read_only=True)))
            assert sum(verified.share_partitions for verified in found) == 20
            assert not any(verified.problem_count for verified in found)
            assert (await back_up(node, "one")).error_code == ErrorCode.INVALID_REQUEST
            for name in ("", ".", "..", "../up", "a/b", "a b", "x" * 101):
                answer = await back_up(node, name)
                assert answer.error_code == ErrorCode.INVALID_REQUEST and repr(name) in answer.error_message
            for number in range(BACKUPS_LIMIT):
                (directory / "backups" / f"old-{number}").mkdir()
            assert (await back_up(node, "two")).error_code == ErrorCode.POLICY_VIOLATION
            assert (await node.read(node.key(39))).error_code == ErrorCode.NONE
            await node.stop()

    run(test)


def test_a_store_in_memory_has_no_backups() -> None:
    async def test() -> None:
        node = SingleShareCoordinator(MemoryDisk().open_store)
        await node.start()
        assert (await back_up(node, "one")).error_code == ErrorCode.INVALID_REQUEST
        await node.stop()

    run(test)


async def back_up(node: SingleShareCoordinator, name: str) -> messages.BackupStateResponse:
    answer, _ = await node.channel.call(BACKUP_STATE, messages.BackupStateRequest(name=name), timeout_ms=10_000)
    return answer


def test_the_interval_is_a_config() -> None:
    assert Configs(BROKER_CONFIGS).integer("share.coordinator.cold.partition.snapshot.interval.ms") == INTERVAL_MS
