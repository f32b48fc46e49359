"""Nodes whose folders are gone are given up: `kshare partitions give-up` and `kshare state give-up`.

The cluster runs with two leaders or share coordinators, stops, loses the folder of the second one, and starts without
it. In the end the lost node comes back with its folder after all, and does no harm.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path

from confluent_kafka import Consumer

from kshare.commands.partitions import describe_partitions
from kshare.commands.state.coordinator_address import coordinator_address
from kshare.commands.state.partitions import describe_state_partitions
from kshare_core.identifiers import SharePartitionKey, state_partition_of
from support.clients.delivery import Reader, new_group, new_topic, produce, set_group, values_of, wait_for
from support.clusters.kshare_cluster import KshareCluster

PARTITIONS = 12
TIMEOUT_S = 60.0
LEASE = {"kshare.node.lease.ms": "3000"}


def kshare(folder: Path, *arguments: str, code: int = 0) -> str:
    command = [str(Path(sys.executable).parent / "kshare"), *arguments, "--data-dir", str(folder / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == code, f"{arguments} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def produce_everywhere(bootstrap: str, topic: str, name: str) -> list[str]:
    values = [f"{name}-{partition:02d}" for partition in range(PARTITIONS)]
    for partition, value in enumerate(values):
        produce(bootstrap, topic, [value], partition)
    return values


def consumed(consumer: Consumer, count: int) -> list[str]:
    """The values that an ordinary consumer reads next, sorted; committed."""
    values: list[str] = []

    def has_read() -> bool:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            values.append((message.value() or b"").decode())
        return len(values) >= count

    wait_for(has_read, f"{count} records are consumed", TIMEOUT_S)
    consumer.commit(asynchronous=False)
    return sorted(values)


def owners(folder: Path) -> dict[int, int]:
    """Of state partitions that do not move."""
    answer = describe_state_partitions(coordinator_address(None, folder / "data"))
    return {owner.state_partition: owner.node_id for owner in answer.state_partitions if not owner.is_moving}


def group_at_both(folder: Path, topic: str) -> str:
    """A name of a group that has state of the topic at both share coordinators."""
    (described,) = describe_partitions(coordinator_address(None, folder / "data"), [topic]).topics
    owned = owners(folder)
    for number in range(1_000):
        group = f"group-{number}"
        keys = [SharePartitionKey(group, described.topic_id, partition) for partition in range(PARTITIONS)]
        if len({owned[state_partition_of(key, len(owned))] for key in keys}) == 2:
            return group
    raise AssertionError("every group has its state at one share coordinator")


def test_state_of_a_lost_share_coordinator_begins_again_at_the_first_record(tmp_path: Path) -> None:
    with KshareCluster(tmp_path, {**LEASE, "kshare.share.coordinators": "2"}) as cluster:
        wait_for(lambda: sorted(owners(tmp_path).values()) == [1] * 25 + [2] * 25, "the state is at both", TIMEOUT_S)
        topic = new_topic(cluster.bootstrap, PARTITIONS)
        group = group_at_both(tmp_path, topic)
        set_group(cluster.bootstrap, group, auto_offset_reset="earliest")
        first = produce_everywhere(cluster.bootstrap, topic, "first")
        with Reader(cluster.bootstrap, group, topic) as reader:
            assert sorted(values_of(reader.accept(PARTITIONS))) == first
    folder, elsewhere = tmp_path / "data" / "share-coordinator-2", tmp_path / "elsewhere"
    shutil.move(folder, elsewhere)
    with KshareCluster(tmp_path, LEASE) as cluster:
        wait_for(lambda: "share coordinator 2 is gone and has 25" in kshare(tmp_path, "nodes"), "it is gone", TIMEOUT_S)
        refused = kshare(tmp_path, "state", "give-up", "2", code=1)
        assert f"state of group {group}, topic {topic}, partitions" in refused and "nothing was changed" in refused
        assert 2 in owners(tmp_path).values()
        lost = refused.split("partitions ")[1].split()[0].split(",")
        assert 0 < len(lost) < PARTITIONS
        assert "it is live" in kshare(tmp_path, "state", "give-up", "1", "--unsafe", code=1)
        done = kshare(tmp_path, "state", "give-up", "2", "--unsafe")
        assert f"25 state partitions have new owners, and {len(lost)} share-partitions restart" in done
        second = produce_everywhere(cluster.bootstrap, topic, "second")
        with Reader(cluster.bootstrap, group, topic) as reader:
            again = [first[int(partition)] for partition in lost]
            assert sorted(values_of(reader.accept(PARTITIONS + len(lost)))) == sorted([*second, *again])
        assert set(owners(tmp_path).values()) == {1}
    shutil.move(elsewhere, folder)
    with KshareCluster(tmp_path, {**LEASE, "kshare.share.coordinators": "2"}) as cluster:
        wait_for(lambda: sorted(owners(tmp_path).values()) == [1] * 25 + [2] * 25, "it has its part again", TIMEOUT_S)
        third = produce_everywhere(cluster.bootstrap, topic, "third")
        with Reader(cluster.bootstrap, group, topic) as reader:
            assert sorted(values_of(reader.accept(PARTITIONS))) == third, "nothing that was accepted comes again"


def test_partitions_of_a_lost_leader_begin_with_empty_logs(tmp_path: Path) -> None:
    with KshareCluster(tmp_path, {**LEASE, "kshare.leaders": "2"}) as cluster:
        topic = new_topic(cluster.bootstrap, PARTITIONS)
        first = produce_everywhere(cluster.bootstrap, topic, "first")
        ordinary = Consumer(
            {"bootstrap.servers": cluster.bootstrap, "group.id": "ordinary", "auto.offset.reset": "earliest"}
        )
        ordinary.subscribe([topic])
        assert consumed(ordinary, PARTITIONS) == first
        (described,) = describe_partitions(coordinator_address(None, tmp_path / "data"), [topic]).topics
        lost = [one.partition for one in described.partitions if one.leader_node_id == 2]
        assert len(lost) == PARTITIONS // 2
    folder, elsewhere = tmp_path / "data" / "leader-2", tmp_path / "elsewhere"
    shutil.move(folder, elsewhere)
    with KshareCluster(tmp_path, LEASE, port=cluster.port) as cluster, contextlib.closing(ordinary):
        wait_for(lambda: "leader 2 is gone and has 6" in kshare(tmp_path, "nodes"), "it is gone", TIMEOUT_S)
        refused = kshare(tmp_path, "partitions", "give-up", "2", code=1)
        assert "nothing was changed" in refused
        for partition in lost:
            assert f"records of {topic}:{partition} (consumer groups committed up to offset 1)" in refused
        done = kshare(tmp_path, "partitions", "give-up", "2", "--unsafe")
        assert f"leader 2 was given up: {len(lost)} partitions have new leaders and empty logs" in done
        second = produce_everywhere(cluster.bootstrap, topic, "second")
        kept = [value for partition, value in enumerate(first) if partition not in lost]
        with Reader(cluster.bootstrap, new_group(cluster.bootstrap), topic) as reader:
            assert sorted(values_of(reader.accept(PARTITIONS + len(kept)))) == sorted([*kept, *second])
        assert consumed(ordinary, PARTITIONS) == second, "it begins again in the new logs, which end at its position"
        assert "problem" not in kshare(tmp_path, "nodes")
        assert "has no partitions" in kshare(tmp_path, "partitions", "give-up", "2", "--unsafe", code=1)
    shutil.move(elsewhere, folder)
    with KshareCluster(tmp_path, {**LEASE, "kshare.leaders": "2"}) as cluster:
        answer = describe_partitions(coordinator_address(None, tmp_path / "data"), [topic])
        assert {leader.node_id: leader.partition_count for leader in answer.leaders} == {1: PARTITIONS, 2: 0}
        with Reader(cluster.bootstrap, new_group(cluster.bootstrap), topic) as reader:
            assert sorted(values_of(reader.accept(PARTITIONS + len(kept)))) == sorted([*kept, *second])
