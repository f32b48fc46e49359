"""`--bootstrap` takes a list, as Kafka's clients do: a command works while one of the addresses answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.clusters.kshare_cluster import KshareCluster

KSHARE = str(Path(sys.executable).parent / "kshare")
NOBODY = "127.0.0.1:1"
COMMANDS = (
    ("topics", "create", "orders"),
    ("produce", "orders", "first order"),
    ("groups", "set", "billing", "share.auto.offset.reset=earliest"),
    ("consume", "orders", "--group", "billing", "--max", "1"),
    ("topics", "list"),
    ("groups", "list"),
    ("groups", "describe", "billing"),
    ("groups", "in-flight", "billing"),
    ("groups", "reset", "billing", "--topic", "orders", "--to-earliest", "--dry-run"),
    ("state", "dump", "billing"),
    ("partitions", "list"),
    ("nodes",),
    ("groups", "delete", "billing"),
)


def kshare(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([KSHARE, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_every_command_works_while_one_address_answers(tmp_path: Path) -> None:
    with KshareCluster(tmp_path) as cluster:
        for command in COMMANDS:
            done = kshare(*command, "--bootstrap", f"{NOBODY}, {cluster.bootstrap}")
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def test_a_list_with_a_wrong_address_and_a_list_that_nobody_answers() -> None:
    wrong = kshare("groups", "list", "--bootstrap", f"{NOBODY},elsewhere")
    assert wrong.returncode == 2
    assert "--bootstrap must be HOST:PORT with a port from 0 to 65535, found 'elsewhere'" in wrong.stderr
    silent = kshare("groups", "list", "--bootstrap", f"{NOBODY},127.0.0.1:2")
    assert silent.returncode == 1
    assert "127.0.0.1:" in silent.stderr and silent.stderr.count("\n") == 1
