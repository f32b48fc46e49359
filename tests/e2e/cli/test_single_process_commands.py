"""kshare's commands about nodes and state on a `kshare up` in one process: they reach what they call there, too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kshare.failure import CommandFailed
from kshare.main import app
from support.clients.administration import read_from_earliest
from support.clusters.kshare_cluster import KshareCluster

TIMEOUT_S = 60.0


def kshare(*arguments: str) -> str:
    command = [str(Path(sys.executable).parent / "kshare"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def in_process(*arguments: str) -> str:
    """What the command prints, without the start of another Python."""
    result = CliRunner().invoke(app, [*arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def check_configs_of_brokers(bootstrap: str) -> None:
    """Altered without a restart, listed, refused by name where that is not possible, and taken back."""
    where = ("--bootstrap", bootstrap)
    in_process("brokers", "set", "message.max.bytes=2000000", "log.retention.ms=60000", *where)
    configs = json.loads(in_process("brokers", "configs", "--json", *where))["configs"]
    assert configs == [
        {"config": "log.retention.ms", "value": "60000"},
        {"config": "message.max.bytes", "value": "2000000"},
    ]
    with pytest.raises(CommandFailed, match=r"cannot be altered while a broker runs: group\.share\.max\.size"):
        in_process("brokers", "set", "group.share.max.size=10", *where)
    with pytest.raises(CommandFailed, match="configs must be NAME=VALUE, found 'log"):
        in_process("brokers", "set", "log.retention.ms", *where)
    with pytest.raises(
        CommandFailed, match=r"^setting configs of all brokers failed: .* restart: kshare\.gateway\.cache\.bytes"
    ):
        in_process("brokers", "set", "kshare.gateway.cache.bytes=0", *where)
    warned = in_process("brokers", "set", "log.retention.msec=1", "--unset", "log.retention.ms", *where)
    assert "set log.retention.msec and unset log.retention.ms of all brokers" in warned
    assert "no broker config log.retention.msec" in warned and "did you mean log.retention.ms?" in warned
    assert in_process("brokers", "set", "--unset", "log.retention.msec", *where) == (
        "unset log.retention.msec of all brokers\n"
    )
    assert "log.retention.ms" not in in_process("brokers", "configs", *where)


def test_commands_on_a_single_process(tmp_path: Path) -> None:
    with KshareCluster(tmp_path, {"kshare.share.coordinators": "2"}, single_process=True) as cluster:
        where = ("--data-dir", str(cluster.data_dir))
        roles = [line.split("│")[1].strip() for line in kshare("nodes", *where).splitlines() if "│" in line]
        assert roles == ["coordinator", "gateway", "share-coordinator", "share-coordinator", "leader"]
        assert kshare("state", "partitions", *where).count(" live ") == 2

        kshare("topics", "create", "orders", "--bootstrap", cluster.bootstrap)
        kshare("produce", "orders", "a", "b", "--bootstrap", cluster.bootstrap)
        read_from_earliest(cluster.bootstrap, "workers")
        consumed = kshare(
            "consume", "orders", "--group", "workers", "--max", "2", "--timeout", "20", "--bootstrap", cluster.bootstrap
        )
        assert [line.split("\t")[4] for line in consumed.splitlines()[1:3]] == ["a", "b"]
        dumped = json.loads(kshare("state", "dump", "workers", "--json", "--bootstrap", cluster.bootstrap))
        assert dumped

        if cluster.upstream is None:  # configs of brokers are the cluster's there
            check_configs_of_brokers(cluster.bootstrap)

        drained = kshare("state", "drain", "2", *where)
        assert "share coordinator 2 is empty and can be stopped" in drained
        if cluster.upstream is None:  # states of the kafka engine are in the cluster
            backup = kshare("state", "backup", "copy", *where)
            assert "copy" in backup
            kshare("state", "verify", *where)
