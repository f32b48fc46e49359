"""`kafka-transactions` of Kafka 4.3.1 with every command, on kshare and on Kafka alike.

Not the same by nature: producer ids, timestamps, and the internal topics whose records Kafka's transactions touch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from support.clients.delivery import wait_for
from support.clusters.engines import release_of_answers
from support.kafka.java import NEWEST
from support.kafka.tools import Printed, ToolPair, about

TOOL = "kafka-transactions"
AT = ("--bootstrap-server", "ADDRESS")
TIMEOUT_S = 30


@contextmanager
def open_transactions(pair: ToolPair, topic: str, transactional_id: str) -> Iterator[None]:
    """On each system, with one record in partition 0; aborted at the end."""
    producers = []
    for bootstrap in pair.bootstraps:
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 0})
        producers.append(producer)
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        producer.produce(topic, b"value", partition=0)
        assert producer.flush(TIMEOUT_S) == 0
    try:
        yield
    finally:
        for producer in producers:
            producer.abort_transaction(TIMEOUT_S)


def _numbers_away(printed: Printed) -> Printed:
    """Producer ids and times, and how long a transaction is open."""
    lines = (re.sub(r"(?<!\S)\d+(?!\S)", "N", line) for line in printed.lines)
    return printed._replace(lines=tuple(lines))


@pytest.fixture
def topic(pair: ToolPair, name: str) -> str:
    pair.create_topic(name, 2)
    return name


def test_an_open_transaction(pair: ToolPair, topic: str) -> None:
    transactional_id = f"{topic}-id"

    def view(printed: Printed) -> Printed:
        return _numbers_away(about(transactional_id, "ProducerId")(printed))

    with open_transactions(pair, topic, transactional_id):
        by_pattern = ("--transactional-id-pattern", f"{topic}-.*")
        for options in ((), ("--duration-filter", "-1"), *((by_pattern,) if release_of_answers() == NEWEST else ())):
            listed = pair.same(TOOL, *AT, "list", *options, server=False, view=view)
            assert listed.has("Ongoing")
        described = pair.same(TOOL, *AT, "describe", "--transactional-id", transactional_id, server=False, view=view)
        assert described.has(f"{topic}-0")
        at = ("--topic", topic, "--partition", "0")
        producers = pair.same(TOOL, *AT, "describe-producers", *at, server=False, view=_numbers_away)
        assert len(producers.lines) == 2
        hanging = ("find-hanging", "--topic", topic, "--max-transaction-timeout", "0")
        pair.same(TOOL, *AT, *hanging, server=False, view=_numbers_away)
    aborted = ("CompleteAbort", "CompleteAbort")
    wait_for(lambda: _states(pair, transactional_id) == aborted, "the transactions are aborted")
    pair.same(TOOL, *AT, "describe", "--transactional-id", transactional_id, server=False, view=view)


def _states(pair: ToolPair, transactional_id: str) -> tuple[str, ...]:
    described = pair.run(TOOL, *AT, "describe", "--transactional-id", transactional_id, server=False)
    return tuple(printed.rows()[1][printed.rows()[0].index("TransactionState")] for printed in described)


def test_abort_ends_a_transaction_that_no_coordinator_ended(pair: ToolPair, topic: str) -> None:
    """In one partition, by its first offset; the coordinator's own marker comes later and changes nothing."""
    at = ("--topic", topic, "--partition", "0")
    reading = ("--topic", topic, "--partition", "0", "--from-beginning", "--timeout-ms", "1500")

    def view(printed: Printed) -> Printed:
        return _numbers_away(printed)

    with open_transactions(pair, topic, f"{topic}-id"):
        assert pair.same(TOOL, *AT, "abort", *at, "--start-offset", "0", server=False).exit_code == 0
        described = pair.same(TOOL, *AT, "describe-producers", *at, server=False, view=view)
        assert described.has("None")
        for level, count in (("read_committed", 0), ("read_uncommitted", 1)):
            read = pair.same("kafka-console-consumer", *reading, "--isolation-level", level)
            assert read.has(f"Processed a total of {count} messages")
        assert pair.same(TOOL, *AT, "abort", *at, "--start-offset", "0", server=False).exit_code != 0


def test_force_terminate(pair: ToolPair, topic: str) -> None:
    transactional_id = f"{topic}-id"
    producers = []
    for bootstrap in pair.bootstraps:
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 0})
        producers.append(producer)
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        producer.produce(topic, b"value", partition=0)
        assert producer.flush(TIMEOUT_S) == 0
    pair.same(TOOL, *AT, "forceTerminateTransaction", "--transactionalId", transactional_id, server=False)
    wait_for(lambda: _states(pair, transactional_id) == ("Empty", "Empty"), "the transactions are aborted")
    reading = ("--topic", topic, "--from-beginning", "--isolation-level", "read_committed", "--timeout-ms", "1500")
    assert pair.same("kafka-console-consumer", *reading, "--partition", "0").has("Processed a total of 0 messages")
    for producer in producers:
        producer.purge()


@pytest.mark.parametrize(
    "command",
    [
        ("list",),
        ("list", "--duration-filter", "100000000"),
        ("list", "--transactional-id-pattern", "nobody.*"),
        ("list", "--transactional-id-pattern", "a("),
        ("describe", "--transactional-id", "nobody"),
        ("forceTerminateTransaction", "--transactionalId", "nobody"),
        ("find-hanging", "--broker-id", "1"),
        ("find-hanging", "--broker-id", "9"),
        ("find-hanging", "--topic", "missing"),
        ("find-hanging", "--topic", "first", "--partition", "0"),
        ("find-hanging", "--partition", "0"),
        ("describe-producers", "--topic", "first"),
        ("describe-producers", "--topic", "first", "--partition", "0", "--broker-id", "1"),
        ("describe-producers", "--partition", "0"),
        ("abort", "--topic", "first", "--partition", "0"),
        ("abort", "--topic", "first", "--partition", "0", "--start-offset", "0"),
        ("nonsense",),
        (),
    ],
    ids=" ".join,
)
def test_where_there_is_nothing(pair: ToolPair, command: tuple[str, ...]) -> None:
    def view(printed: Printed) -> Printed:
        return _numbers_away(printed if command[:1] != ("list",) else about("nobody", "rror")(printed))

    pair.same(TOOL, *AT, *command, server=False, view=view)


def test_what_does_not_exist(pair: ToolPair, tmp_path: Path) -> None:
    """The tool looks for it as long as it is told."""
    quick = tmp_path / "quick.properties"
    quick.write_text("default.api.timeout.ms=1500\nrequest.timeout.ms=1000\n")
    missing = ("describe-producers", "--topic", "missing", "--partition", "0")
    kshare, kafka = pair.run(TOOL, *AT, "--command-config", str(quick), *missing, server=False)
    assert kshare.exit_code == kafka.exit_code == 1
    assert kshare.lines[0].split(":")[0] == kafka.lines[0].split(":")[0]
