"""The port through which the delivery history is stored; each engine has one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from kshare_core.configs import Configs
from kshare_core.delivery_history import HISTORY_TOPIC
from kshare_core.errors import ErrorCode

_REFUSED = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.CORRUPT_MESSAGE,
    }
)
"""Error codes of a Produce that a retry would not change."""


class CannotPublish(Exception):
    """A round did not store everything and is retried; the text says why."""


class HistoryTopic(NamedTuple):
    """The topic as this leader's catalog has it; `max_message_bytes` limits a batch."""

    topic_id: bytes
    partition_count: int
    max_message_bytes: int


class HistoryBatch(NamedTuple):
    """A record batch with the first `records` records of a lane."""

    partition: int
    records: int
    data: bytes


class Outcome(NamedTuple):
    """What became of a batch: it is stored if there is no `problem`. `is_refused`: a retry would not change it."""

    batch: HistoryBatch
    problem: str = ""
    is_refused: bool = False


def outcome_of(batch: HistoryBatch, error_code: int, message: str) -> Outcome:
    """The outcome of a batch whose Produce was answered."""
    if error_code == ErrorCode.NONE:
        return Outcome(batch)
    text = message or f"error {error_code}"
    if error_code in _REFUSED:
        return Outcome(batch, f"{HISTORY_TOPIC}-{batch.partition} refuses delivery events: {text}", is_refused=True)
    return Outcome(batch, f"partition {batch.partition} of {HISTORY_TOPIC}: {text}")


def topic_configs(configs: Configs) -> dict[str, str]:
    """The configs with which a leader creates the topic."""
    retention_ms = configs.integer("kshare.delivery.history.retention.ms")
    return {"cleanup.policy": "delete", "retention.ms": str(retention_ms)}


class HistoryTarget(Protocol):
    """Where the history goes. The publisher has one call of each kind under way for a leader, and repeats them."""

    async def topic(self) -> HistoryTopic:
        """The topic, which is created if it is missing; CannotPublish."""
        ...

    async def leaders_of(self, topic: HistoryTopic, partitions: Iterable[int]) -> Mapping[int, str]:
        """Names of the leaders of those partitions that have one now; CannotPublish."""
        ...

    async def append(self, topic: HistoryTopic, leader: str, batches: Sequence[HistoryBatch]) -> list[Outcome]:
        """Appends batches of different partitions, without a retry; returns an outcome for each."""
        ...

    async def close(self) -> None:
        """Gives up what is under way."""
        ...
