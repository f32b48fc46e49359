"""Batches that no client should send, raw over the wire to kshare and to Kafka 4.3.1: the same answers.

Compared are error codes, record errors and, where Kafka sends one, the message. kshare is stricter in a few cases,
where Kafka stores what consumers cannot read (`STRICTER`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from kshare_core.errors import ErrorCode
from support.clients.delivery import new_topic
from support.clients.leaders_and_coordinators import connection_to_leader
from support.clients.raw_kafka import ProducedAnswer, produce_for_answer, record_with_key
from support.clusters.kshare_cluster import KshareCluster
from support.kafka.apache_kafka import ApacheKafka
from support.wire.malformed_batches import TOPIC_CONFIGS, Case, cases
from support.wire.raw_batches import CODECS

STRICTER_NAMES = (
    "first record longer than the batch",
    "first record longer by one",
    "first record shorter by one",
    "last record longer by one",
    "last record shorter by one",
    "broken record",
)
"""Of compressed batches; Kafka refuses them without compression."""
STRICTER = {f"{codec}: {name}" for codec in CODECS[1:] for name in STRICTER_NAMES} | {
    "none: offset deltas the other way",
    "none: offset deltas all 0",
    "none: offset deltas with gaps",
    "none: offset delta negative",
    "none: offset delta the greatest",
    "lz4: garbage after it",
    "lz4: zeros after it",
}
EITHER_CODE = {f"{codec}: many, a byte flipped" for codec in CODECS}
"""Kafka reads records while it decompresses, so the place of the damage decides which of the two it meets first."""
OTHER_MESSAGES = {f"{codec}: no key, then a broken record" for codec in CODECS[1:]}
"""Kafka does not look at the lengths in these."""


class Answered(NamedTuple):
    case: Case
    kafka: ProducedAnswer
    kshare: ProducedAnswer


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Answered]:
    with ExitStack() as stack:
        kafka = stack.enter_context(ApacheKafka(tmp_path_factory.mktemp("kafka"), quick=True))
        kshare = stack.enter_context(KshareCluster(tmp_path_factory.mktemp("kshare")))
        table = list(cases(time.time_ns() // 1_000_000))
        of_kafka, of_kshare = list(_asked(kafka.bootstrap, table)), list(_asked(kshare.bootstrap, table))
    return [Answered(*found) for found in zip(table, of_kafka, of_kshare, strict=True)]


def _asked(bootstrap: str, table: list[Case]) -> Iterator[ProducedAnswer]:
    for name, configs in TOPIC_CONFIGS.items():
        new_topic(bootstrap, 1, name=name, **{key.replace(".", "_"): value for key, value in configs.items()})
    with ExitStack() as stack:
        leaders = {name: stack.enter_context(connection_to_leader(bootstrap, name)) for name in TOPIC_CONFIGS}
        for name, leader in leaders.items():
            deadline = time.monotonic() + 30
            while produce_for_answer(leader, name, record_with_key()).code != ErrorCode.NONE:
                assert time.monotonic() < deadline, f"topic {name} does not take records"
        for case in table:
            yield produce_for_answer(leaders[case.topic], case.topic, case.records)


def _comparable(text: str | None) -> str | None:
    """Without the bounds of the moment, and without what Kafka tells of a record with the wrong timestamp type."""
    if text is None:
        return None
    text = re.sub(r"within \[-?\d+, -?\d+\]", "within [..]", text)
    return re.sub(r"type in message .*\. Producer", "type in message .. Producer", text)


def test_the_error_codes_are_kafkas(answers: list[Answered]) -> None:
    differences = {
        case.name: (kafka.code.name, kshare.code.name)
        for case, kafka, kshare in answers
        if kafka.code != kshare.code and case.name not in STRICTER | EITHER_CODE
    }
    assert differences == {}


def test_what_kafka_stores_and_no_consumer_can_read_is_refused(answers: list[Answered]) -> None:
    found = {case.name: (kafka.code, kshare.code) for case, kafka, kshare in answers if case.name in STRICTER}
    expected = (ErrorCode.NONE, ErrorCode.INVALID_RECORD)
    assert found == dict.fromkeys(STRICTER, expected)


def test_damage_in_the_middle_is_refused(answers: list[Answered]) -> None:
    refusals = (ErrorCode.INVALID_RECORD, ErrorCode.UNKNOWN_SERVER_ERROR)
    for case, kafka, kshare in answers:
        if case.name in EITHER_CODE and kafka.code != ErrorCode.NONE:
            assert kafka.code in refusals and kshare.code in refusals, case.name


def test_record_errors_and_messages_are_kafkas(answers: list[Answered]) -> None:
    compared = 0
    for case, kafka, kshare in answers:
        if case.name in OTHER_MESSAGES | STRICTER or kafka.message is None:
            continue
        compared += 1
        assert _comparable(kshare.message) == _comparable(kafka.message), case.name
        errors = [(index, _comparable(text)) for index, text in kshare.record_errors]
        assert errors == [(index, _comparable(text)) for index, text in kafka.record_errors], case.name
    assert compared > 50


def test_good_batches_get_offsets_and_bad_ones_none(answers: list[Answered]) -> None:
    for case, _, kshare in answers:
        assert (kshare.base_offset >= 0) == (kshare.code == ErrorCode.NONE), case.name
