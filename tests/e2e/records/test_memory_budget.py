"""kshare.memory.budget: resident memory keeps within it, comes back after load, and a wrong value does not start."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Producer, ShareConsumer

from support.clients.administration import create_topic, read_from_earliest
from support.clients.good_client import resident_bytes
from support.clients.several_coordinator_load import wait_until
from support.clusters.engines import is_attached
from support.clusters.kshare_cluster import COMMAND, KshareCluster, children_of
from support.environment.memory_folder import memory_folder

MEBIBYTE = 1024 * 1024
BUDGETS = {False: 480 * MEBIBYTE, True: 256 * MEBIBYTE}
"""By whether there is one process for all roles."""
RECORD_BYTES, RECORDS = 100_000, 2_000
"""200 MB: more than all caches take."""
SLACK_BYTES = 64 * MEBIBYTE
"""Of a peak between two checks, and of what is being worked on then."""
RETURN_BYTES = {False: 64 * MEBIBYTE, True: 32 * MEBIBYTE}
"""What all processes together keep of the load: an eighth of their caches, and the allocators' fragments."""
PEAK_BYTES = 32 * MEBIBYTE
"""The load takes so much more, at least, than may stay."""
ATTACHED_RETURN_BYTES, ATTACHED_PEAK_BYTES = 48 * MEBIBYTE, 16 * MEBIBYTE
"""The same in front of an existing cluster: the records have no store here, so the load takes 75 MiB and not 100."""


def resident(cluster: KshareCluster) -> int:
    return sum(resident_bytes(pid) for pid in (cluster.pid, *children_of(cluster.pid)))


def load(cluster: KshareCluster, topic: str) -> int:
    """Produces and consumes RECORDS records; returns the highest memory that was seen meanwhile."""
    highest = 0
    create_topic(cluster.bootstrap, topic, 2)
    read_from_earliest(cluster.bootstrap, topic)
    producer = Producer({"bootstrap.servers": cluster.records_bootstrap, "queue.buffering.max.kbytes": 20_000})
    for number in range(RECORDS):
        while True:
            try:
                producer.produce(topic, bytes(RECORD_BYTES), partition=number % 2)
                break
            except BufferError:
                producer.poll(1)
                highest = max(highest, resident(cluster))
    assert producer.flush(120) == 0
    consumer = ShareConsumer({"bootstrap.servers": cluster.bootstrap, "group.id": topic})
    consumer.subscribe([topic])
    received = 0

    def is_done() -> bool:
        nonlocal received, highest
        received += len(consumer.poll(1))
        highest = max(highest, resident(cluster))
        return received >= RECORDS

    wait_until(is_done, 120, "all records were consumed")
    consumer.close()
    return highest


@pytest.mark.parametrize("single_process", [False, pytest.param(True, marks=pytest.mark.real_faults)])
def test_memory_keeps_within_the_budget_and_comes_back_after_load(single_process: bool) -> None:
    budget, kept, peak = BUDGETS[single_process], RETURN_BYTES[single_process], PEAK_BYTES
    if is_attached():
        kept, peak = ATTACHED_RETURN_BYTES, ATTACHED_PEAK_BYTES
    settings = {"kshare.memory.budget": str(budget), "kshare.memory.quiet.ms": "2000"}
    with memory_folder() as folder, KshareCluster(folder, settings, single_process=single_process) as cluster:
        idle = resident(cluster)
        for topic in ("first", "second") if single_process else ("first",):
            highest = load(cluster, topic)
            assert highest <= budget + SLACK_BYTES, f"{highest // MEBIBYTE} MiB"
            assert highest > idle + kept + peak, f"the load is too small: {highest // MEBIBYTE} MiB"
            wait_until(lambda: resident(cluster) <= idle + kept, 60, "the memory of the load was given back")


@pytest.mark.parametrize("value", ["-2", "1000", "1e9", str(1 << 60)])
def test_a_budget_that_cannot_be_kept_is_refused_at_the_start(tmp_path: Path, value: str) -> None:
    config = tmp_path / "server.properties"
    config.write_text(f"kshare.memory.budget={value}\n")
    command = [str(COMMAND), "up", "--data-dir", str(tmp_path / "data"), "--config", str(config)]
    command += ["--listen", "127.0.0.1:0", "--processes", "4"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "kshare.memory.budget" in ended.stderr
    if value in ("1000", str(1 << 60)):
        assert f"for 4 nodes in a process each it must be from {432 * MEBIBYTE} to " in " ".join(ended.stderr.split())
