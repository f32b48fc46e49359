"""Backups of a running share coordinator, and its process on a damaged store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from typer.testing import CliRunner

from kshare.failure import CommandFailed
from kshare.main import app
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import SharePartitionKey, state_partition_of
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import READ_SHARE_GROUP_STATE, WRITE_SHARE_GROUP_STATE
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_runtime.store_files import examine
from support.clusters.role_processes import RoleProcess, running
from support.runtime.damaged_files import content_of_files, needed_logs, written_bytes
from support.share_coordinator.many_states import build_store, many_keys

SHARE_PARTITIONS = 300
KEYS = list(many_keys(SHARE_PARTITIONS))
EXITED = 1


def kshare_state(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["state", *map(str, arguments)])
    if isinstance(result.exception, CommandFailed):
        return result.exception.exit_code, f"{result.output}{result.exception}"
    assert result.exception is None, result.output
    return result.exit_code, result.output


def read_all(address: str) -> dict[SharePartitionKey, tuple[int, str]]:
    """Error code and message of each share-partition."""

    async def read() -> dict[SharePartitionKey, tuple[int, str]]:
        channel = GrpcNetwork().connect(address)
        found: dict[SharePartitionKey, tuple[int, str]] = {}
        for key in KEYS:
            request = messages.ReadShareGroupStateRequest(group_id=key.group_id)
            request.partitions.add(topic_id=key.topic_id, partition=key.partition, leader_epoch=-1)
            answer, _ = await channel.call(READ_SHARE_GROUP_STATE, request, timeout_ms=5_000)
            found[key] = (answer.results[0].error_code, answer.results[0].error_message)
        await channel.close()
        return found

    return asyncio.run(read())


def write_all(address: str, keys: Sequence[SharePartitionKey]) -> None:
    async def write() -> None:
        channel = GrpcNetwork().connect(address)
        for key in keys:
            request = messages.WriteShareGroupStateRequest(group_id=key.group_id)
            partition = request.partitions.add(
                topic_id=key.topic_id, partition=key.partition, state_epoch=1, leader_epoch=1, start_offset=-1
            )
            partition.state_batches.add(first_offset=500, last_offset=599, delivery_state=2, delivery_count=1)
            answer, _ = await channel.call(WRITE_SHARE_GROUP_STATE, request, timeout_ms=5_000)
            assert answer.results[0].error_code == ErrorCode.NONE
        await channel.close()

    asyncio.run(write())


def test_back_up_damage_and_restore(tmp_path: Path) -> None:
    node_dir = tmp_path / "node"
    build_store(node_dir, SHARE_PARTITIONS)
    with running("coordinator", tmp_path / "coordinator") as coordinator:
        node = RoleProcess("share_coordinator", node_dir, coordinator_address=coordinator.address)
        node.start()
        try:
            node.wait_ready()
            code, text = kshare_state("backup", "one", "--share-coordinator", node.address)
            assert code == 0 and f"{SHARE_PARTITIONS} share-partitions" in text
            served = ("--data-dir", node_dir, "--share-coordinator", node.address)
            assert kshare_state("verify", *served)[0] == 0
            assert kshare_state("export", *served, "--output", tmp_path / "served.jsonl")[0] == 0
            assert [path.name for path in (node_dir / "backups").iterdir()] == ["one"]
        finally:
            node.kill()
        backup = node_dir / "backups" / "one"
        assert kshare_state("export", "--data-dir", backup, "--output", tmp_path / "backup.jsonl")[0] == 0
        assert (tmp_path / "backup.jsonl").read_text() == (tmp_path / "served.jsonl").read_text()

        number = damage_a_table(node_dir / "share-coordinator")
        node.start()
        try:
            node.wait_ready()
            for key, (error_code, message) in read_all(node.address).items():
                if state_partition_of(key, 50) == number:
                    assert error_code == ErrorCode.KAFKA_STORAGE_ERROR
                    assert f"kshare state import --replace {number}" in message
                else:
                    assert error_code == ErrorCode.NONE
            write_all(node.address, [key for key in KEYS if state_partition_of(key, 50) != number])
        finally:
            node.kill()
        assert f"state partition {number} is damaged" in node.log.read_text()

        repair = ("import", tmp_path / "backup.jsonl", "--data-dir", node_dir, "--replace", str(number))
        assert kshare_state(*repair)[0] == 0
        node.start()
        try:
            node.wait_ready()
            assert {error_code for error_code, _ in read_all(node.address).values()} == {ErrorCode.NONE}
            write_all(node.address, KEYS)
        finally:
            node.kill()


def damage_a_table(store: Path) -> int:
    """Cuts a byte off a table; the state partition that it belongs to."""
    files = examine(store)
    assert files is not None
    family = next(family for family in files.manifest.families.values() if family.tables and "state" in family.name)
    table = store / f"{max(family.tables):06}.sst"
    table.write_bytes(table.read_bytes()[:-1])
    return int(family.name.removeprefix("state-"))


def test_a_damaged_log_ends_the_process_with_what_to_do_and_changes_nothing(tmp_path: Path) -> None:
    node_dir = tmp_path / "node"
    build_store(node_dir, SHARE_PARTITIONS)
    with running("coordinator", tmp_path / "coordinator") as coordinator:
        node = RoleProcess("share_coordinator", node_dir, coordinator_address=coordinator.address)
        node.start()
        try:
            node.wait_ready()
            write_all(node.address, KEYS[:100])
        finally:
            node.kill()
        log = needed_logs(node_dir / "share-coordinator")[-1]
        whole, written = log.read_bytes(), written_bytes(log)
        for damaged in (whole[: written // 2], whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:]):
            log.write_bytes(damaged)
            before = content_of_files(node_dir / "share-coordinator")
            node.log.write_text("")
            node.start()
            assert node.process is not None
            try:
                assert node.process.wait(30) == EXITED
            finally:
                node.kill()
            text = node.log.read_text()
            assert (
                "could not start" in text and "`kshare state verify`" in text and "nothing was changed" in text.lower()
            )
            assert content_of_files(node_dir / "share-coordinator") == before
        log.write_bytes(whole)
        node.start()
        try:
            node.wait_ready()
            assert {error_code for error_code, _ in read_all(node.address).values()} == {ErrorCode.NONE}
        finally:
            node.kill()
