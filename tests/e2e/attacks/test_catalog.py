"""Clients that fill the catalog: it has a budget, a good client beside them is served, and a full one can be loaded."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader

from kshare_core.errors import ErrorCode as E
from support.clients.good_client import MEASURED_S, SAMPLES_AT_LEAST, GoodClient, resident_bytes
from support.clients.raw_kafka import read_frame
from support.clusters.engines import upstream_of_tests
from support.clusters.kshare_cluster import ROLES, KshareCluster
from support.environment.memory_folder import memory_folder
from support.gateway.harness import build, request_frame

P99_LIMIT_MS = 250.0
MIB = 1024 * 1024
BUDGET_BYTES = 64 * MIB
MEMORY_GROWTH_LIMIT_BYTES = 6 * BUDGET_BYTES
"""Of one role at its highest: 64 MiB of rows are some 130 MB as objects, and a request of 48 MB with its answer is in
memory as frames and as objects."""
INCREMENTAL_ALTER_CONFIGS, VERSION = 44, 1
SET, GROUP = 0, 32
NAME, VALUE = "share.auto.offset.reset", "earliest"
ID_BYTES = 1_024
ROW_BYTES = ID_BYTES + len(NAME) + len(VALUE) + 8


def alteration(group_ids: Iterable[str]) -> bytes:
    """A frame that gives each group a config."""
    change = {"name": NAME, "config_operation": SET, "value": VALUE}
    resources = tuple(
        {"resource_type": GROUP, "resource_name": group_id, "configs": (change,)} for group_id in group_ids
    )
    values = {"resources": resources, "validate_only": False}
    return request_frame(INCREMENTAL_ALTER_CONFIGS, VERSION, 1, build(INCREMENTAL_ALTER_CONFIGS, VERSION, values))


def answers(port: int, frames: Sequence[bytes]) -> list[bytes]:
    """One after the other, over one connection that is closed then."""
    found = []
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        for frame in frames:
            connection.sendall(frame)
            answer = read_frame(connection)
            assert answer is not None
            found.append(answer)
    return found


def codes(answer: bytes) -> Counter[int]:
    """How many groups got which error code."""
    read: Any = entity_reader(load_response_schema(INCREMENTAL_ALTER_CONFIGS, VERSION))(answer, 5)[0]
    return Counter(int(each.error_code) for each in read.responses)


@pytest.fixture
def cluster() -> Iterator[KshareCluster]:
    """In memory, and not started; a cluster behind it runs until the end."""
    with memory_folder() as folder, upstream_of_tests(folder / "upstream", {}) as upstream:
        yield KshareCluster(folder, upstream=upstream)


@pytest.mark.quiet
def test_a_good_client_beside_an_attack_on_the_catalog(cluster: KshareCluster) -> None:
    """The three requests that ended the cluster once, then more than the budget takes; then restarts with it full."""
    large = [alteration(f"{each}-{number}-".ljust(32_000, "g") for number in range(1_500)) for each in range(3)]
    many = [alteration(f"{each}-{number}-".ljust(ID_BYTES, "g") for number in range(5_000)) for each in range(15)]
    with cluster, GoodClient(cluster.bootstrap) as client:
        before = {role: resident_bytes(cluster.role_pid(role)) for role in ROLES}
        with client.measured() as attacked:
            until = time.monotonic() + MEASURED_S
            refused = answers(cluster.port, large)
            filled = answers(cluster.port, many)
            while time.monotonic() < until:
                refused += answers(cluster.port, large)
        grown = {role: resident_bytes(cluster.role_pid(role), peak=True) - before[role] for role in ROLES}
        with client.measured() as afterwards:
            client.wait_for_records(SAMPLES_AT_LEAST + 10)
        for role in ("leader", "gateway", "share_coordinator", "coordinator"):
            cluster.kill_role(role)
            client.wait_for_records(20)
    cluster.start()  # which waits until it is ready
    assert cluster.stop() == 0
    assert [codes(answer) for answer in refused] == [{E.INVALID_GROUP_ID: 1_500}] * len(refused)
    total = sum(map(codes, filled), Counter())
    assert total.keys() == {E.NONE, E.POLICY_VIOLATION}
    assert BUDGET_BYTES - ROW_BYTES <= total[E.NONE] * ROW_BYTES <= BUDGET_BYTES
    assert max(grown.values()) < MEMORY_GROWTH_LIMIT_BYTES, grown
    assert attacked.p99_ms < P99_LIMIT_MS, f"during the attack: {attacked}"
    assert afterwards.p99_ms < P99_LIMIT_MS, f"after it: {afterwards}"
