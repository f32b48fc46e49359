"""max.connections.per.ip and its overrides: each address has its limit, which may change at run time."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from support.clusters.kshare_cluster import KshareCluster

TIMEOUT_S = 30.0
API_VERSIONS = bytes.fromhex("0000000d0012000000000001000374") + b"est"
"""ApiVersions, version 0."""
LIMITED, CHANGED, OTHER = "127.0.0.2", "127.0.0.3", "127.0.0.4"
LIMITS = f"127.0.0.1:1000,{LIMITED}:1,{CHANGED}:"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KshareCluster]:
    settings = {"max.connections.per.ip": "3", "max.connections.per.ip.overrides": f"{LIMITS}1"}
    folder: Path = tmp_path_factory.mktemp("limits")
    with KshareCluster(folder, settings) as cluster:
        yield cluster


def connected(cluster: KshareCluster, host: str, stack: ExitStack) -> bool:
    """Whether a further connection from this address is answered; if so, it stays open until the stack ends."""
    connection = socket.create_connection(("127.0.0.1", cluster.port), TIMEOUT_S, source_address=(host, 0))
    stack.callback(connection.close)
    try:
        connection.sendall(API_VERSIONS)
        return bool(connection.recv(100))
    except ConnectionError:
        return False


def alter(cluster: KshareCluster, name: str, value: str) -> None:
    change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(TIMEOUT_S)


def test_each_address_has_its_limit(cluster: KshareCluster) -> None:
    with ExitStack() as stack:
        assert [connected(cluster, OTHER, stack) for _ in range(4)] == [True, True, True, False]
        assert [connected(cluster, LIMITED, stack) for _ in range(2)] == [True, False]
        assert all(connected(cluster, "127.0.0.1", stack) for _ in range(20))
    cluster.wait_for_log("max.connections.per.ip")


def test_a_closed_connection_makes_room_and_a_changed_limit_counts_at_once(cluster: KshareCluster) -> None:
    with ExitStack() as stack:
        wait_until_connected(cluster, CHANGED, stack)
        assert not connected(cluster, CHANGED, stack)
        alter(cluster, "max.connections.per.ip.overrides", f"{LIMITS}2")
        wait_until_connected(cluster, CHANGED, stack)
        assert not connected(cluster, CHANGED, stack)


def wait_until_connected(cluster: KshareCluster, host: str, stack: ExitStack) -> None:
    """The gateway sees the end of the connections before, and new configs, a moment later."""
    deadline = time.monotonic() + TIMEOUT_S
    while not connected(cluster, host, stack):
        assert time.monotonic() < deadline
