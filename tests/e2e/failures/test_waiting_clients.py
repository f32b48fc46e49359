"""Clients that connect while a gateway starts, the first time or again, wait for its response and are not refused."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.clients.raw_kafka import framed, header, read_frame
from support.clusters.kshare_cluster import KshareCluster

API_VERSIONS = 18
RESPONSE_TIMEOUT_S = 60.0


def connect(cluster: KshareCluster) -> socket.socket:
    return socket.create_connection(("127.0.0.1", cluster.port), timeout=RESPONSE_TIMEOUT_S)


def assert_answers(connection: socket.socket) -> None:
    connection.sendall(framed(header(API_VERSIONS, 0)))
    response = read_frame(connection)
    assert response is not None and response[4:6] == b"\0\0", "ApiVersions without an error"


@contextmanager
def starting(cluster: KshareCluster) -> Iterator[None]:
    thread = threading.Thread(target=cluster.start)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        assert cluster.stop() == 0


@pytest.mark.parametrize("single_process", [True, False], ids=["one process", "a process for each role"])
def test_a_client_may_come_before_kshare_is_ready(tmp_path: Path, *, single_process: bool) -> None:
    cluster = KshareCluster(tmp_path, single_process=single_process)
    with starting(cluster):
        deadline = time.monotonic() + RESPONSE_TIMEOUT_S
        while True:
            try:
                connection = connect(cluster)
                break
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
        assert not cluster.ready_file.exists()
        with connection:
            assert_answers(connection)
    with pytest.raises(ConnectionRefusedError):
        connect(cluster)


def test_a_client_is_not_refused_while_a_gateway_is_started_again(tmp_path: Path) -> None:
    with KshareCluster(tmp_path) as cluster, connect(cluster) as before:
        assert_answers(before)
        killed = cluster.kill_role("gateway")
        assert read_frame(before) is None
        waiting = [connect(cluster)]
        cluster.wait_until_gone(killed)
        waiting.append(connect(cluster))
        for connection in waiting:
            with connection:
                assert_answers(connection)
