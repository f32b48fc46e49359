"""One kshare and one Apache Kafka for the tools' tests of a test process; no test disturbs the others."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from support.clients.delivery import running_system
from support.kafka.tools import ToolPair

SETTINGS = {"share_coordinator_state_topic_min_isr": "1", "group_initial_rebalance_delay_ms": "0"}
EARLIEST = "share.auto.offset.reset=earliest"


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolPair]:
    """Where they differ at the start they are made equal: Kafka's internal topics come with the first group, and
    min.insync.replicas is given to all brokers where a cluster was formatted with eligible leader replicas."""
    with ExitStack() as stack:
        kshare, kafka = (
            stack.enter_context(running_system(kind, tmp_path_factory.mktemp(kind), **SETTINGS))
            for kind in ("kshare", "kafka")
        )
        tools = stack.enter_context(ToolPair((kshare.bootstrap, kafka.bootstrap)))
        tools.same("kafka-configs", "--alter", "--broker-defaults", "--add-config", "min.insync.replicas=1")
        tools.same("kafka-topics", "--create", "--topic", "first")
        tools.same("kafka-console-producer", "--topic", "first", typed="one\n")
        tools.same("kafka-configs", "--alter", "--group", "first-share", "--add-config", EARLIEST)
        reading = ("--topic", "first", "--max-messages", "1", "--timeout-ms", "20000")
        tools.same("kafka-console-consumer", *reading, "--group", "first", "--from-beginning")
        tools.same("kafka-console-share-consumer", *reading, "--group", "first-share")
        yield tools


@pytest.fixture
def name() -> str:
    """What the names of a test begin with."""
    return f"n{uuid.uuid4().hex[:8]}"
