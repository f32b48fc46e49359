"""`kshare backup` of a cluster that serves removes its copies when it fails: each keeps the space of all tables."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from kshare.backup import copies
from kshare.backup.create import create_backup
from kshare.failure import INTERRUPTED, CommandFailed
from kshare_runtime.confirmed_writes import FILE_NAME
from kshare_runtime.store_backups import BACKUPS_DIRECTORY
from support.clients.delivery import wait_for
from support.clusters.engines import TestEngine
from support.clusters.kshare_cluster import COMMAND, KshareCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KshareCluster]:
    with KshareCluster(tmp_path_factory.mktemp("kshare"), engine=TestEngine.EMBEDDED) as running:
        yield running


def copies_in(cluster: KshareCluster) -> list[Path]:
    return sorted((cluster.data_dir / BACKUPS_DIRECTORY).glob("copying-*"))


def wait_for_copies(cluster: KshareCluster) -> None:
    """The coordinator's and the share coordinator's are complete; the leader is paused."""
    wait_for(
        lambda: sum(bool(read_note(copy)) for copy in copies_in(cluster)) == 2,
        "there are two copies",
    )


def read_note(copy: Path) -> bytes:
    """What a node writes last into a copy."""
    note = copy / FILE_NAME
    return note.read_bytes() if note.exists() else b""


def test_copies_are_removed_when_the_coordinator_does_not_answer_any_more(
    cluster: KshareCluster, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(1) as pool, ExitStack() as stopped:
        with cluster.paused("leader"):
            running = pool.submit(create_backup, cluster.data_dir, tmp_path / "backup", print)
            wait_for_copies(cluster)
            with pytest.raises(CommandFailed, match=r"another kshare backup of .* runs"):
                create_backup(cluster.data_dir, tmp_path / "other", print)
            stopped.enter_context(cluster.paused("coordinator"))
        with pytest.raises(CommandFailed, match=r"the coordinator at .* did not answer"):
            running.result(60)
    assert copies_in(cluster) == []


def test_copies_are_removed_when_a_node_does_not_answer(
    cluster: KshareCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "BACKUP_TIMEOUT_MS", 1_000)
    with cluster.paused("leader"), pytest.raises(CommandFailed, match=r"leader at .* did not answer"):
        create_backup(cluster.data_dir, tmp_path / "backup", print)
    assert copies_in(cluster) == []


def test_copies_of_a_killed_command_are_removed_by_the_next_backup(cluster: KshareCluster, tmp_path: Path) -> None:
    other = cluster.data_dir / BACKUPS_DIRECTORY / "copying-for-tests"
    with cluster.paused("leader"):
        running = start_backup(cluster, tmp_path / "first")
        wait_for_copies(cluster)
        running.kill()
        running.communicate(timeout=30)
        assert len(copies_in(cluster)) == 2
    other.mkdir()
    create_backup(cluster.data_dir, tmp_path / "second", print)
    assert copies_in(cluster) == [other], "the backup of another name is the user's"
    other.rmdir()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_copies_are_removed_when_the_command_is_interrupted(
    cluster: KshareCluster, tmp_path: Path, number: signal.Signals
) -> None:
    with cluster.paused("leader"):
        running = start_backup(cluster, tmp_path / "backup")
        wait_for_copies(cluster)
        running.send_signal(number)
        _, problems = running.communicate(timeout=30)
        assert running.returncode == INTERRUPTED, problems.decode()
        assert copies_in(cluster) == []


def start_backup(cluster: KshareCluster, target: Path) -> subprocess.Popen[bytes]:
    command = [str(COMMAND), "backup", str(target), "--data-dir", str(cluster.data_dir)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
