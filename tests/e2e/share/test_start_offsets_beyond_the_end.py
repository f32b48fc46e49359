"""AlterShareGroupOffsets to an offset beyond the end of the log, at kshare and at Apache Kafka 4.3.1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kshare_wire.generated.api_keys import ApiKey
from support.clients.delivery import new_topic, produce
from support.kafka.same_answers import Asked, Pair, codes, running_pair, wait_for_coordinator

GROUP = "beyond"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running_pair(tmp_path_factory.mktemp) as pair:
        yield pair


def _alter(asked: Asked, topic: str, start_offset: int) -> Any:
    return asked.ask(
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        0,
        group_id=GROUP,
        topics=[{"topic_name": topic, "partitions": [{"partition_index": 0, "start_offset": start_offset}]}],
    )


def _described(asked: Asked, topic: str) -> tuple[int, int, int]:
    """Error code, start offset and lag of partition 0."""
    answer = asked.ask(
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        1,
        groups=[{"group_id": GROUP, "topics": [{"topic_name": topic, "partitions": [0]}]}],
    )
    (partition,) = answer.groups[0].topics[0].partitions
    return int(partition.error_code), int(partition.start_offset), int(partition.lag)


@pytest.mark.timeout(240)
def test_an_alteration_beyond_the_end_is_answered_and_described_as_by_kafka(pair: Pair) -> None:
    """Kafka takes it, and shows a lag below 0; here a lag is never below 0."""
    described = []
    answers = []
    for asked in (pair.kshare, pair.kafka):
        wait_for_coordinator(asked.requests, 0, GROUP)
        topic = new_topic(asked.records_bootstrap, name="orders")
        produce(asked.records_bootstrap, topic, ["x"] * 10)
        answers.append(codes(_alter(asked, topic, 100)))
        described.append(_described(asked, topic))
    assert answers[0] == answers[1]
    assert described == [(0, 100, 0), (0, 100, -90)]
