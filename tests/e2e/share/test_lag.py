"""Start offset and lag of share groups (KIP-1226), as Kafka's own tool prints them, on kshare and on Kafka 4.3.1.

Records in flight count; records that are delivered to their end do not, also where they lie behind others that are not.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.clients.administration import create_placed_topic
from support.clients.delivery import (
    ACCEPT,
    RELEASE,
    SETTINGS,
    Reader,
    System,
    new_group,
    new_topic,
    produce,
    running_system,
    wait_for,
)
from support.clusters.kshare_cluster import KshareCluster
from support.kafka.java_clients import JavaClients
from support.kafka.java_programs import run_tool


@pytest.fixture(scope="module", params=["kshare", "kafka"])
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with running_system(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture
def bootstrap(system: System) -> str:
    return system.bootstrap


@pytest.fixture
def records_bootstrap(system: System) -> str:
    return system.records_bootstrap


@pytest.fixture(scope="module")
def java() -> Iterator[JavaClients]:
    with JavaClients() as clients:
        yield clients


def printed(bootstrap: str, group: str) -> dict[int, tuple[int | None, int | None]]:
    """Start offset and lag by partition, out of `kafka-share-groups --describe --offsets`."""
    tool = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
    output = run_tool(bootstrap, tool, "--describe", "--group", group, "--offsets")
    lines = [line.split() for line in output.splitlines() if line.strip()]
    (header,) = (line for line in lines if line[0] == "GROUP")
    start_at, lag_at = header.index("START-OFFSET"), header.index("LAG")
    partition_at = header.index("PARTITION")
    return {
        int(line[partition_at]): (_number(line[start_at]), _number(line[lag_at])) for line in lines if line[0] == group
    }


def _number(text: str) -> int | None:
    return None if text == "-" else int(text)


@pytest.mark.timeout(240)
def test_start_offset_and_lag_from_the_first_delivery_on(system: System) -> None:
    """Kafka writes nothing down before the first acknowledgement, and knows no lag until then; kshare does.

    The start offset that is written down may lie before records that are done; the lag knows of them.
    """
    bootstrap, records_bootstrap = system.bootstrap, system.records_bootstrap
    topic, group = f"topic-{uuid.uuid4().hex[:8]}", new_group(bootstrap)
    create_placed_topic(records_bootstrap, topic, [[1], [1]], {})  # at one broker, so that one fetch reads both
    produce(records_bootstrap, topic, map(str, range(10)))
    with Reader(bootstrap, group, topic) as reader:
        messages = reader.take()
        assert len(messages) == 10
        untouched = (0, 0) if system.kind == "kshare" else (None, None)
        in_flight = (0, 10) if system.kind == "kshare" else (None, None)
        assert printed(bootstrap, group) == {0: in_flight, 1: untouched}

        reader.settle(ACCEPT, messages[2:5])  # out of order
        assert printed(bootstrap, group) == {0: (0, 7), 1: untouched}

        reader.settle(ACCEPT, messages[:2])
        start_offset, lag = printed(bootstrap, group)[0]
        assert start_offset in range(6) and lag == 5

        reader.settle(RELEASE, messages[5:])
        produce(records_bootstrap, topic, ["more"] * 3)
        assert printed(bootstrap, group)[0][1] == 8


def lag_of(java: JavaClients, bootstrap: str, group: str) -> dict[str, int | None]:
    """By partition ("topic-0"), as Admin.listShareGroupOffsets has it."""
    return {at: lag for at, (_, lag) in java.share_group_offsets(bootstrap, group).items()}


@pytest.mark.timeout(120)
def test_the_admin_client_says_the_same(bootstrap: str, records_bootstrap: str, java: JavaClients) -> None:
    topic, group = new_topic(records_bootstrap), new_group(bootstrap)
    produce(records_bootstrap, topic, map(str, range(6)))
    with Reader(bootstrap, group, topic) as reader:
        messages = reader.take()
        reader.settle(ACCEPT, [messages[1], messages[3]])
        assert java.share_group_offsets(bootstrap, group) == {f"{topic}-0": (0, 4)}
        reader.settle(RELEASE, [messages[0], messages[2], *messages[4:]])
    with Reader(bootstrap, group, topic) as reader:
        reader.accept(4)
    assert lag_of(java, bootstrap, group) == {f"{topic}-0": 0}


def test_a_group_that_does_not_exist_has_no_offsets(bootstrap: str, java: JavaClients) -> None:
    assert java.share_group_offsets(bootstrap, f"missing-{uuid.uuid4().hex[:8]}") == {}


def test_a_deleted_topic_is_left_out(system: System, java: JavaClients) -> None:
    bootstrap, records_bootstrap = system.bootstrap, system.records_bootstrap
    kept, gone = new_topic(records_bootstrap), new_topic(records_bootstrap)
    group = new_group(bootstrap)
    for topic in (kept, gone):
        produce(records_bootstrap, topic, ["one"])
    with Reader(bootstrap, group, [kept, gone]) as reader:
        reader.accept(2)
    assert lag_of(java, bootstrap, group) == {f"{kept}-0": 0, f"{gone}-0": 0}
    system.delete_topic(gone)
    wait_for(lambda: lag_of(java, bootstrap, group) == {f"{kept}-0": 0}, "the deleted topic is left out")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("role", ["leader", "share_coordinator", "coordinator"])
def test_the_figures_outlast_a_killed_process(tmp_path: Path, java: JavaClients, role: str) -> None:
    with KshareCluster(tmp_path, SETTINGS) as cluster:
        bootstrap, records_bootstrap = cluster.bootstrap, cluster.records_bootstrap
        topic, group = new_topic(records_bootstrap), new_group(bootstrap)
        produce(records_bootstrap, topic, map(str, range(8)))
        with Reader(bootstrap, group, topic) as reader:
            messages = reader.take()
            reader.settle(ACCEPT, [messages[0], *messages[3:6]])
            before = java.share_group_offsets(bootstrap, group)
            assert before[f"{topic}-0"][1] == 4
            cluster.wait_until_gone(cluster.kill_role(role))
            wait_for(
                lambda: java.share_group_offsets(bootstrap, group) == before,
                f"start offset and lag as before the {role} was killed",
            )
        with Reader(bootstrap, group, topic) as reader:
            reader.accept(4)
        assert lag_of(java, bootstrap, group) == {f"{topic}-0": 0}
