"""Apache Kafka's own KafkaShareConsumer (kafka-clients 4.3.1), which speaks ShareFetch and ShareAcknowledge v2."""

from __future__ import annotations

import subprocess
import uuid

import pytest
from confluent_kafka import Producer

from support.clients.administration import create_topic, read_from_earliest
from support.kafka.java_programs import java_command

RECORDS = 120


def run_worker(*arguments: str) -> list[list[str]]:
    """The worker's lines, split into words."""
    command = java_command("ShareWorker", *arguments, log_level="warn")
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return [line.split() for line in result.stdout.splitlines()]


def prepared(bootstrap: str, records_bootstrap: str, values: list[str]) -> tuple[str, str]:
    """A topic with these values, and a group that reads it from its start."""
    topic, group = f"java-{uuid.uuid4().hex[:8]}", f"group-{uuid.uuid4().hex[:8]}"
    create_topic(records_bootstrap, topic, 3)
    read_from_earliest(bootstrap, group)
    producer = Producer({"bootstrap.servers": records_bootstrap})
    for index, value in enumerate(values):
        producer.produce(topic, value.encode(), partition=index % 3)
    assert producer.flush(30) == 0
    return topic, group


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
@pytest.mark.parametrize("acquire_mode", ["batch_optimized", "record_limit"])
def test_every_record_comes_once(bootstrap: str, records_bootstrap: str, mode: str, acquire_mode: str) -> None:
    values = [f"plain-{index}" for index in range(RECORDS)]
    topic, group = prepared(bootstrap, records_bootstrap, values)
    lines = run_worker(
        bootstrap,
        topic,
        group,
        mode,
        str(RECORDS),
        f"share.acquire.mode={acquire_mode}",
        "max.poll.records=7",
    )
    records = [line for line in lines if line[0] == "record"]
    assert sorted(line[4] for line in records) == sorted(values)
    assert {line[3] for line in records} == {"1"}
    assert {line[2] for line in lines if line[0] == "commit"} == {"ok"}


def test_release_reject_and_renew(bootstrap: str, records_bootstrap: str) -> None:
    values = [f"{kind}-{n}" for n in range(10) for kind in ("plain", "release", "reject", "renew")]
    topic, group = prepared(bootstrap, records_bootstrap, values)
    lines = run_worker(bootstrap, topic, group, "mixed", str(len(values)))
    deliveries: dict[str, list[str]] = {}
    for line in lines:
        if line[0] == "record":
            deliveries.setdefault(line[4], []).append(f"{line[3]} {line[5]}")
    expected = {
        "plain": ["1 accept"],
        "release": ["1 release", "2 accept"],
        "reject": ["1 reject"],
        "renew": ["1 renew", "1 accept"],
    }
    assert deliveries == {value: expected[value.split("-")[0]] for value in values}
    assert {line[2] for line in lines if line[0] == "commit"} == {"ok"}
