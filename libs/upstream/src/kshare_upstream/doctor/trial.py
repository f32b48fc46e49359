"""A topic that is created, written, read, pruned and deleted as kshare does with its own, and what came of it.

Fencing depends on two facts that no version or config tells: a repeated batch is answered with the offset of the first
(KIP-98), and DeleteRecords moves the log's start. A broker of another vendor may differ, so they are tried.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from kshare_core.errors import ErrorCode
from kshare_upstream.doctor.findings import Diagnosis, Severity
from kshare_upstream.partition_log import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    OutcomeUnknown,
    PartitionLog,
    Refused,
)
from kshare_upstream.port import Upstream, UpstreamPartitionName
from kshare_upstream.producer_ids import ProducerId, fresh_producer_id
from kshare_upstream.topics import create_topic, delete_topic, durable_configs
from kshare_wire.record_batches import read_headers
from kshare_wire.record_writing import BatchWriter, ProducerSequence

APPENDS = 50
BATCH_LIMIT_BYTES = 1024
SLOW_APPEND_MS = 20.0
"""Above this, acknowledgements of share consumers are slower than most users expect."""
DEADLINE_MS = 15_000
_NOT_ALLOWED = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The topic that is made, and the clock by which appends are measured."""

    topic: str
    prefix: str
    """The prefix of all topics of kshare, for which rights are needed."""
    replicas: int
    bootstrap: str
    """As the user wrote it, for commands."""
    now_ms: Callable[[], float]
    wall_clock_ms: int
    """The timestamp of the records: brokers may refuse older ones (log.message.timestamp.before.max.ms)."""


async def examine_by_trial(upstream: Upstream, trial: Trial, diagnosis: Diagnosis) -> None:
    """Findings of the trial; the topic is deleted in the end, whatever happened."""
    configs = durable_configs(trial.replicas)
    try:
        await create_topic(upstream, trial.topic, partitions=1, replicas=trial.replicas, configs=configs)
    except Refused as refused:
        diagnosis.add(Severity.REFUSAL, f"kshare cannot create its topics: {refused}", _rights(trial, refused))
        return
    try:
        await _use(upstream, trial, diagnosis)
    except Refused as refused:
        diagnosis.add(Severity.REFUSAL, f"a topic of kshare cannot be used: {refused}", _rights(trial, refused))
    except OutcomeUnknown as problem:
        diagnosis.add(Severity.REFUSAL, f"a topic of kshare cannot be used: {problem}")
    finally:
        await _delete(upstream, trial, diagnosis)


async def _use(upstream: Upstream, trial: Trial, diagnosis: Diagnosis) -> None:
    log = PartitionLog(upstream, UpstreamPartitionName(trial.topic, 0), deadline_ms=DEADLINE_MS)
    producer = await fresh_producer_id(upstream, deadline_ms=DEADLINE_MS)
    offsets, durations_ms = [], []
    for sequence in range(APPENDS):
        before_ms = trial.now_ms()
        offsets.append(await log.append(_batch(producer, sequence, trial.wall_clock_ms)))
        durations_ms.append(trial.now_ms() - before_ms)
    _judge_speed(statistics.median(durations_ms), trial, diagnosis)
    repeated = await log.append(_batch(producer, APPENDS - 1, trial.wall_clock_ms))
    end = await log.offset_at(LATEST_TIMESTAMP)
    if repeated == offsets[-1] and end == offsets[-1] + 1:
        diagnosis.add(Severity.OK, "a repeated batch is stored once and answered with its first offset")
    else:
        diagnosis.add(
            Severity.REFUSAL,
            f"a batch that was stored at offset {offsets[-1]} and repeated was answered with offset {repeated}, and "
            f"the log ends at {end}: kshare could not tell which of its writes count",
        )
    await _prune(log, offsets[APPENDS // 2], diagnosis)


async def _prune(log: PartitionLog, offset: int, diagnosis: Diagnosis) -> None:
    try:
        await log.delete_before(offset)
    except Refused as refused:
        diagnosis.add(
            Severity.REFUSAL,
            f"DeleteRecords is refused, so the log of share-group state would grow forever: {refused}",
        )
        return
    start = await log.offset_at(EARLIEST_TIMESTAMP)
    records = await log.read(offset)
    headers = read_headers(memoryview(records.data))
    if start == offset and headers and headers[0].base_offset == offset:
        diagnosis.add(Severity.OK, "DeleteRecords removes the beginning of a log")
    else:
        diagnosis.add(Severity.REFUSAL, f"DeleteRecords below offset {offset} left the log's start at {start}")


async def _delete(upstream: Upstream, trial: Trial, diagnosis: Diagnosis) -> None:
    try:
        await delete_topic(upstream, trial.topic)
    except (Refused, OSError) as problem:
        diagnosis.add(
            Severity.WARNING,
            f"the topic {trial.topic}, made for this examination, is left over: {problem}",
            f"kafka-topics.sh --bootstrap-server {trial.bootstrap} --delete --topic {trial.topic}",
        )


def _judge_speed(median_ms: float, trial: Trial, diagnosis: Diagnosis) -> None:
    copies = "1 replica" if trial.replicas == 1 else f"{trial.replicas} replicas"
    text = f"a write with acks=all to {copies} takes {median_ms:.2f} ms (median of {APPENDS})"
    if median_ms <= SLOW_APPEND_MS:
        diagnosis.add(Severity.OK, text)
    else:
        diagnosis.add(Severity.WARNING, f"{text}: every acknowledgement waits for one such write")


def _batch(producer: ProducerId, sequence: int, timestamp_ms: int) -> bytes:
    writer = BatchWriter(BATCH_LIMIT_BYTES, producer=ProducerSequence(*producer, sequence))
    writer.append(timestamp_ms, b"trial", sequence.to_bytes(4), ())
    return writer.build()


def _rights(trial: Trial, refused: Refused) -> str:
    if refused.code not in _NOT_ALLOWED:
        return ""
    return (
        f"kafka-acls.sh --bootstrap-server {trial.bootstrap} --add --allow-principal User:KSHARE --operation All "
        f"--topic {trial.prefix} --resource-pattern-type prefixed"
    )
