"""Idempotent producers while their leader is stopped, killed and started: nothing is lost, nothing is stored twice.

In front of an existing cluster it is the gateway, which they reach the cluster through.

librdkafka begins a new producer epoch where it believes that requests came out of order, and what was stored without
an answer is stored again then; so no batch of the log may have an epoch above 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kshare_wire.record_batches import BatchHeader, read_headers
from support.clients.administration import create_topic
from support.clients.delivery import wait_for
from support.clients.leaders_and_coordinators import connection_to_leader
from support.clients.raw_records import fetch_raw
from support.clients.several_coordinator_load import Load
from support.clusters.engines import is_attached, settings_of_roles
from support.clusters.restarted_roles import RestartedRoles

INTERVAL_S = 0.002
RESTARTS = 3
PRODUCERS = 3
PARTITIONS = 4
MORE = 100
"""Confirmed records of each producer between two restarts."""


class SteadyProducing(Load):
    """Each record is a request of its own, so that several are under way whenever the leader goes away."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__()
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 0, "enable.idempotence": True, "log_level": 0}
        )
        self.sent = 0
        self.confirmed = 0
        self.failures: list[str] = []

    def work(self) -> None:
        while not self._stop_asked.wait(INTERVAL_S):
            partition = self.sent % PARTITIONS
            self._producer.produce(self._topic, b"v" * 50, partition=partition, on_delivery=self._delivered)
            self._producer.poll(0)
            self.sent += 1
        assert self._producer.flush(60) == 0

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.confirmed += 1
        else:
            self.failures.append(str(error))


def stored_batches(bootstrap: str, topic: str, partition: int) -> list[BatchHeader]:
    found: list[BatchHeader] = []
    with connection_to_leader(bootstrap, topic, partition) as connection:
        while records := fetch_raw(connection, topic, found[-1].last_offset + 1 if found else 0, partition=partition):
            found += read_headers(records)
    return found


def wait_for_more(producers: Sequence[SteadyProducing]) -> None:
    """Each gets on."""
    wanted = [producer.confirmed + MORE for producer in producers]
    wait_for(
        lambda: all(producer.confirmed >= count for producer, count in zip(producers, wanted, strict=True)),
        f"{MORE} more records of each producer are confirmed",
    )


@pytest.mark.timeout(120)
def test_a_leader_that_comes_back(tmp_path: Path) -> None:
    with (
        settings_of_roles(tmp_path / "upstream") as of_engine,
        RestartedRoles(tmp_path / "roles", of_engine, share_coordinators=1, gateways=1) as cluster,
    ):
        (bootstrap,) = cluster.bootstraps
        create_topic(bootstrap, "orders", PARTITIONS)
        producers = [SteadyProducing(bootstrap, "orders") for _ in range(PRODUCERS)]
        leader = cluster.roles["gateway-1" if is_attached() else "leader-1"]
        with ExitStack() as entered:
            for producer in producers:
                entered.enter_context(producer)
            for _ in range(RESTARTS):
                wait_for_more(producers)
                leader.restart()
                wait_for_more(producers)
                leader.kill()
                leader.start()
                leader.wait_ready()
            wait_for_more(producers)
        logs = [stored_batches(bootstrap, "orders", partition) for partition in range(PARTITIONS)]
    assert [producer.failures for producer in producers] == [[]] * PRODUCERS
    assert {batch.producer_epoch for batches in logs for batch in batches} == {0}
    for batches in logs:
        sequences = [(batch.producer_id, batch.base_sequence) for batch in batches]
        assert len({*sequences}) == len(sequences)
    sent = sum(producer.sent for producer in producers)
    assert sum(batch.record_count for batches in logs for batch in batches) == sent
    assert sum(producer.confirmed for producer in producers) == sent
