"""The log of a `kshare up` with all roles in one process, whose format and level the environment names."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
from pathlib import Path
from typing import Any

from support.clients.delivery import wait_for
from support.clusters.kshare_cluster import COMMAND, KshareCluster

METADATA = 3
FORGED = "evil\nforged \x1b[2J" + "x" * 5_000


def send(connection: socket.socket, body: bytes, client_id: str = "") -> None:
    request = struct.pack(">hhih", METADATA, 1, 1, len(client_id)) + client_id.encode() + body
    connection.sendall(struct.pack(">i", len(request)) + request)


def lines(cluster: KshareCluster) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cluster.log_text().splitlines() if line.startswith("{")]


def test_a_line_is_json_with_time_level_role_and_node(tmp_path: Path) -> None:
    variables = {"KSHARE_LOG_FORMAT": "json", "KSHARE_LOG_LEVEL": "debug"}
    with KshareCluster(tmp_path, variables=variables, single_process=True) as cluster:
        with socket.create_connection(("127.0.0.1", cluster.port)) as connection:
            send(connection, struct.pack(">i", 0), FORGED)
            assert connection.recv(1)

        def answered() -> list[dict[str, Any]]:
            return [line for line in lines(cluster) if str(line.get("client_id")).startswith("evil")]

        wait_for(lambda: bool(answered()), "the gateway has logged the request")
        (line,) = answered()
    expected = {"role": "gateway", "node_id": 1, "level": "debug", "logger": "kshare_gateway"}
    assert line["timestamp"].endswith("Z") and {**line, **expected} == line
    assert line["client_id"].startswith(r"evil\nforged \x1b[2J") and len(line["client_id"]) < len(FORGED)


def test_lines_below_the_level_are_left_out(tmp_path: Path) -> None:
    with (
        KshareCluster(tmp_path, variables={"KSHARE_LOG_LEVEL": "error"}, single_process=True) as cluster,
        socket.create_connection(("127.0.0.1", cluster.port)) as connection,
    ):
        send(connection, b"\xff\xff")
        assert connection.recv(1) == b""  # a warning is logged before the connection is closed
    assert "closing connection" not in cluster.log_text()


def test_a_level_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    command = [str(COMMAND), "up", "--single-process", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path)]
    environment = {**os.environ, "KSHARE_LOG_LEVEL": "loud"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "(or KSHARE_LOG_LEVEL) is 'loud'" in done.stderr
