"""`kshare up` and `kshare attach` that cannot start, or are stopped before they serve anybody."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.clusters.engines import TestEngine
from support.clusters.kshare_cluster import KshareCluster
from support.environment.free_ports import free_port

KSHARE = str(Path(sys.executable).parent / "kshare")
LIMIT_S = 60.0
BELOW_ETCD_LIMIT_S = 20.0
"""A coordinator waits for its etcd for 30 s."""


@contextmanager
def running(*arguments: str, temporary: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [KSHARE, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_process_stops_while_it_waits_for_its_store(tmp_path: Path, number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as etcd:  # nobody answers there
        config = tmp_path / "kshare.properties"
        config.write_text(
            f"kshare.metadata.store=etcd\nkshare.metadata.etcd.endpoints=127.0.0.1:{etcd.getsockname()[1]}\n"
        )
        arguments = ["--data-dir", str(tmp_path / "data"), "--listen", f"127.0.0.1:{free_port()}"]
        command = ["up", *arguments, "--single-process", "--config", str(config)]
        with running(*command, temporary=tmp_path) as process:
            etcd.settimeout(LIMIT_S)
            connection, _ = etcd.accept()
            asked_at = time.monotonic()
            process.send_signal(number)
            output, errors = process.communicate(timeout=LIMIT_S)
            connection.close()
    assert (process.returncode, "Traceback" in errors) == (0, False), errors
    assert "stopping" in output
    assert time.monotonic() - asked_at < BELOW_ETCD_LIMIT_S


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("processes", ["1", "4"])
def test_an_examination_that_is_stopped_leaves_no_file(tmp_path: Path, number: signal.Signals, processes: str) -> None:
    """The file may hold a password."""
    config = tmp_path / "kshare.properties"
    config.write_text("kshare.upstream.request.timeout.ms=60000\n")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as broker:  # nobody answers there
        bootstrap = f"127.0.0.1:{broker.getsockname()[1]}"
        command = ["attach", bootstrap, "--listen", "127.0.0.1:0", "--config", str(config), "--processes", processes]
        with running(*command, temporary=temporary) as process:
            broker.settimeout(LIMIT_S)
            connection, _ = broker.accept()
            assert list(temporary.glob("*/attach.properties"))
            process.send_signal(number)
            _, errors = process.communicate(timeout=LIMIT_S)
            connection.close()
    assert (process.returncode, errors) == (0, "")
    assert list(temporary.iterdir()) == []


def test_a_damaged_store_is_one_line(tmp_path: Path) -> None:
    with KshareCluster(tmp_path, single_process=True, engine=TestEngine.EMBEDDED) as cluster:
        data_dir = cluster.data_dir
    (current,) = (data_dir / "coordinator").rglob("CURRENT")
    current.write_bytes(b"MANIFEST-999999\n")
    done = subprocess.run(
        [KSHARE, "up", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0", "--single-process"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    lines = done.stderr.splitlines()
    assert (done.returncode, len(lines)) == (1, 1), done.stderr
    assert lines[0].startswith("kshare: could not start: ") and str(data_dir) in lines[0]


def test_a_second_start_leaves_the_ready_file_of_the_first(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready"
    with KshareCluster(tmp_path / "a", single_process=True, engine=TestEngine.EMBEDDED) as cluster:
        ready_file.write_text("of the first")
        command = [KSHARE, "up", "--data-dir", str(cluster.data_dir), "--listen", "127.0.0.1:0"]
        done = subprocess.run(
            [*command, "--ready-file", str(ready_file)], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert (done.returncode, "in use" in done.stderr) == (2, True)
        assert ready_file.read_text() == "of the first"


def test_a_wrong_config_is_one_line_and_leaves_no_stale_ready_file(tmp_path: Path) -> None:
    ready_file, config = tmp_path / "ready", tmp_path / "kshare.properties"
    command = [KSHARE, "up", "--data-dir", str(tmp_path / "data"), "--single-process", "--config", str(config)]
    for text, told in (("kshare.metadata.store=etcd", "kshare.metadata.etcd.endpoints"), ("leaders=two", "leaders")):
        ready_file.write_text("of a process that was killed")
        config.write_text(f"{text}\n")
        done = subprocess.run(
            [*command, "--listen", "127.0.0.1:0", "--ready-file", str(ready_file)],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert told in done.stderr and not ready_file.exists()


def test_errors_of_attach_name_the_file_of_the_user(tmp_path: Path) -> None:
    config = tmp_path / "mine.properties"
    config.write_text("listeners=PLAINTEXT://127.0.0.1:0\n")
    command = [KSHARE, "attach", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 2
    assert f"configuration {config} has `listeners`" in done.stderr
