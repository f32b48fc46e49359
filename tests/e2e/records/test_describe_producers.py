"""The output of Kafka's own tool for a partition's producers (`kafka-transactions.sh describe-producers`)."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer

from support.clients.administration import create_topic
from support.kafka.java_programs import run_tool

TIMEOUT_S = 30.0


def described(bootstrap: str, topic: str) -> list[dict[str, str]]:
    """The tool's rows by the names of its columns."""
    arguments = ("describe-producers", "--topic", topic, "--partition", "0")
    printed = run_tool(bootstrap, "org.apache.kafka.tools.TransactionsCommand", *arguments)
    header, *rows = [line.split("\t") for line in printed.splitlines()]
    return [dict(zip(map(str.strip, header), map(str.strip, row), strict=True)) for row in rows]


@pytest.mark.timeout(180)
def test_an_open_transaction_and_its_end_are_described(bootstrap: str) -> None:
    topic = "described"
    create_topic(bootstrap, topic, 1)
    settings = {"bootstrap.servers": bootstrap, "transactional.id": "described", "linger.ms": 0, "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(TIMEOUT_S)
    before_ms = time.time() * 1000
    producer.begin_transaction()
    for value in ("a", "b", "c"):
        producer.produce(topic, value.encode(), partition=0)
        assert producer.flush(TIMEOUT_S) == 0
    (row,) = described(bootstrap, topic)
    assert (row["ProducerEpoch"], row["LastSequence"]) == ("0", "2")
    assert row["CurrentTransactionStartOffset"] == "0"
    assert before_ms - 1000 <= int(row["LastTimestamp"]) <= time.time() * 1000 + 1000
    producer.commit_transaction(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    while row["CurrentTransactionStartOffset"] != "None" and time.monotonic() < deadline:
        (row,) = described(bootstrap, topic)
    assert (row["CurrentTransactionStartOffset"], row["LastSequence"]) == ("None", "2")
    assert int(row["LatestCoordinatorEpoch"]) >= 0
