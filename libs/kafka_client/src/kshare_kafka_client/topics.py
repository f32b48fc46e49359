"""The partitions of topics, and the start and end offsets of their logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

REQUEST_TIMEOUT_S = 30.0


class Partition(NamedTuple):
    """A partition of a topic by the topic's name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


class KafkaUnavailable(RuntimeError):
    """The cluster did not respond, or responded with an error; the text names the request."""


class UnknownTopic(KafkaUnavailable):
    """A topic or partition does not exist."""


def partitions_of(consumer: Consumer, topics: Sequence[str]) -> dict[str, list[Partition]]:
    """All partitions of those of `topics` that exist, ascending. KafkaUnavailable without an answer."""
    found: dict[str, list[Partition]] = {}
    for topic in topics:
        try:
            metadata = consumer.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics.get(topic)
        except KafkaException as error:
            raise failure(f"asking for the partitions of topic {topic!r}", error) from None
        if metadata is None or _is_missing(metadata.error):
            continue
        if metadata.error is not None:
            raise failure(f"asking for the partitions of topic {topic!r}", KafkaException(metadata.error))
        found[topic] = [Partition(topic, number) for number in sorted(metadata.partitions)]
    return found


def _is_missing(error: KafkaError | None) -> bool:
    return error is not None and error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)


def topic_ids(properties: Mapping[str, str], topics: Sequence[str]) -> dict[str, str]:
    """The ids of topics as Kafka writes them (base64 for URLs); UnknownTopic where one does not exist."""
    if not topics:
        return {}
    admin = AdminClient(dict(properties))
    answers = admin.describe_topics(TopicCollection(list(topics)), request_timeout=REQUEST_TIMEOUT_S)
    found: dict[str, str] = {}
    for topic, answer in answers.items():
        try:
            topic_id = str(answer.result(REQUEST_TIMEOUT_S + 5).topic_id)
            found[topic] = topic_id.replace("+", "-").replace("/", "_")
        except KafkaException as error:
            raise failure(f"asking for the id of topic {topic!r}", error) from None
    return found


def start_offsets(consumer: Consumer, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """The start offsets of the logs."""
    return _offsets(consumer, dict.fromkeys(partitions, OFFSET_BEGINNING))


def end_offsets(consumer: Consumer, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """The offset after the last visible record; with read_committed the last stable offset."""
    return _offsets(consumer, dict.fromkeys(partitions, OFFSET_END))


def offsets_at(consumer: Consumer, partitions: Iterable[Partition], time_ms: int) -> dict[Partition, int]:
    """The offset of the first record at or after `time_ms`; the end offset if there is none."""
    found = _offsets(consumer, dict.fromkeys(partitions, time_ms))
    later = [partition for partition, offset in found.items() if offset < 0]
    return {**found, **end_offsets(consumer, later)}


def _offsets(consumer: Consumer, asked: Mapping[Partition, int]) -> dict[Partition, int]:
    """ListOffsets for all partitions at once; the values are times, or OFFSET_BEGINNING and OFFSET_END."""
    if not asked:
        return {}
    wanted = [TopicPartition(topic, number, time) for (topic, number), time in asked.items()]
    what = f"asking for offsets of {len(wanted)} partitions of {', '.join(sorted({at.topic for at in wanted}))}"
    try:
        answers = consumer.offsets_for_times(wanted, timeout=REQUEST_TIMEOUT_S)
    except KafkaException as error:
        raise failure(what, error) from None
    found: dict[Partition, int] = {}
    for answer in answers:
        if answer.error is not None:
            raise failure(f"asking for an offset of {answer.topic}:{answer.partition}", KafkaException(answer.error))
        found[Partition(answer.topic, answer.partition)] = answer.offset
    return found


def failure(what: str, error: KafkaException) -> KafkaUnavailable:
    """One line: the failed operation, Kafka's error name and its text."""
    detail = error.args[0] if error.args else error
    if not isinstance(detail, KafkaError):
        return KafkaUnavailable(f"{what} failed: {error}")
    kind = UnknownTopic if _is_missing(detail) or detail.code() == KafkaError._UNKNOWN_PARTITION else KafkaUnavailable
    return kind(f"{what} failed: {detail.name().lstrip('_')}: {detail.str()}")
