"""Helpers of the Produce, Fetch and ListOffsets handlers: a partition's log, its epoch check, its leader."""

from __future__ import annotations

from typing import Protocol

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_leader.ports import ServedLog, ServedLogs
from kshare_rpc.generated.kshare.v1 import common_pb2

UNKNOWN = -1
"""Kafka's value for an unknown offset, time or epoch."""

_LEADER_ERRORS = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH}
)


class NamedPartition(Protocol):
    """A partition in a request."""

    @property
    def topic_id(self) -> bytes: ...

    @property
    def partition(self) -> int: ...


def key_of(partition: NamedPartition) -> TopicPartition:
    return TopicPartition(partition.topic_id, partition.partition)


def log_at_epoch(logs: ServedLogs, key: TopicPartition, current_leader_epoch: int) -> ServedLog:
    """The log, where the client's leader epoch is current or not given (-1).

    KafkaError as `ServedLogs.lookup`, FENCED_LEADER_EPOCH for an older epoch, UNKNOWN_LEADER_EPOCH for a newer one
    (Partition.checkCurrentLeaderEpoch).
    """
    log = logs.lookup(key)
    if 0 <= current_leader_epoch < log.leader_epoch:
        text = f"leader epoch {current_leader_epoch} is fenced; partition {log.name} is at epoch {log.leader_epoch}"
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, text)
    if current_leader_epoch > log.leader_epoch:
        text = f"leader epoch {current_leader_epoch} is unknown; partition {log.name} is at {log.leader_epoch}"
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, text)
    return log


def leader_in_answer(logs: ServedLogs, key: TopicPartition, error_code: int) -> common_pb2.LeaderIdAndEpoch:
    """`current_leader` of an answer: set for errors that tell the client to find another leader, else (-1, -1)."""
    leader_id, leader_epoch = logs.current_leader(key) if error_code in _LEADER_ERRORS else (UNKNOWN, UNKNOWN)
    return common_pb2.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch)
