"""Each case of the five RPCs with the code that Apache Kafka 4.3.1 answers, read from its ShareCoordinatorShard.

Where the code here is another one, the row says why. Kafka's checks are in this order: malformed names, a state that
was never initialized, the leader epoch, the state epoch; so are these.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import SharePartitionKey, state_partition_of
from kshare_runtime.memory_store import MemoryDisk
from kshare_share_coordinator.machine.operations import Operation, key_problem
from support.share_coordinator.shell import (
    KEY,
    TOPIC_ID,
    ShareCoordinatorShell,
    delete,
    initialize,
    read,
    summary,
    write,
)

NONE, INVALID = ErrorCode.NONE, ErrorCode.INVALID_REQUEST
FENCED_LEADER, FENCED_STATE = ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

NOT_INITIALIZED = "the KIP's answer; Kafka's is that of a malformed request"
FENCES = "-1 would turn fencing off, and an old leader could write"
MALFORMED = "Kafka stores it"
REPEATED = "a repetition after a lost answer must not wipe what a leader wrote since (KAFKA-19204)"


class Case(NamedTuple):
    """An operation, whether the state is there (state epoch 5, leader epoch 7), and the two codes."""

    name: str
    operation: Operation
    is_initialized: bool
    kafka: ErrorCode
    here: ErrorCode
    why: str = ""


def key(partition: int) -> SharePartitionKey:
    return SharePartitionKey("orders", TOPIC_ID, partition)


CASES = [
    Case("initialize a new one", initialize(), False, NONE, NONE),
    Case("initialize with an older state epoch", initialize(state_epoch=4), True, FENCED_STATE, FENCED_STATE),
    Case("initialize with the same state epoch", initialize(state_epoch=5), True, NONE, NONE, REPEATED),
    Case("initialize with a newer state epoch", initialize(state_epoch=6), True, NONE, NONE),
    Case("initialize with state epoch -1", initialize(state_epoch=-1), True, NONE, INVALID, FENCES),
    Case("initialize with start offset -2", initialize(start_offset=-2), False, NONE, INVALID, MALFORMED),
    Case("initialize a negative partition", initialize(key(-1)), False, INVALID, INVALID),
    Case("read what was never initialized", read(), False, INVALID, UNKNOWN, NOT_INITIALIZED),
    Case("read with an older leader epoch", read(leader_epoch=6), True, FENCED_LEADER, FENCED_LEADER),
    Case("read with the same leader epoch", read(leader_epoch=7), True, NONE, NONE),
    Case("read with a newer leader epoch", read(leader_epoch=8), True, NONE, NONE),
    Case("read with leader epoch -1", read(leader_epoch=-1), True, NONE, NONE),
    Case("read a negative partition", read(key(-1)), False, INVALID, INVALID),
    Case("write what was never initialized", write(), False, INVALID, UNKNOWN, NOT_INITIALIZED),
    Case("write with the stored epochs", write(state_epoch=5, leader_epoch=7), True, NONE, NONE),
    Case("write with newer epochs", write(state_epoch=6, leader_epoch=8), True, NONE, NONE),
    Case("write with an older leader epoch", write(state_epoch=5, leader_epoch=6), True, FENCED_LEADER, FENCED_LEADER),
    Case("write with an older state epoch", write(state_epoch=4, leader_epoch=7), True, FENCED_STATE, FENCED_STATE),
    Case("write with both older", write(state_epoch=4, leader_epoch=6), True, FENCED_LEADER, FENCED_LEADER),
    Case("write with leader epoch -1", write(state_epoch=5, leader_epoch=-1), True, NONE, FENCED_LEADER, FENCES),
    Case("write with state epoch -1", write(state_epoch=-1, leader_epoch=7), True, NONE, FENCED_STATE, FENCES),
    Case(
        "write a run that ends before it begins",
        write(KEY, (5, 4, 2, 1), state_epoch=5, leader_epoch=7),
        True,
        NONE,
        INVALID,
        MALFORMED,
    ),
    Case(
        "write the state Acquired, which is never stored",
        write(KEY, (5, 6, 1, 1), state_epoch=5, leader_epoch=7),
        True,
        NONE,
        INVALID,
        MALFORMED,
    ),
    Case("write a negative partition", write(key(-1)), False, INVALID, INVALID),
    Case("delete", delete(), True, NONE, NONE),
    Case("delete what is not there", delete(), False, NONE, NONE),
    Case("delete a negative partition", delete(key(-1)), False, INVALID, INVALID),
    Case("summary", summary(), True, NONE, NONE),
    Case("summary of what was never initialized", summary(), False, NONE, NONE),
    Case("summary of a negative partition", summary(key(-1)), False, INVALID, INVALID),
]


def answer_of(case: Case) -> ErrorCode:
    shell = ShareCoordinatorShell(MemoryDisk().open_store("test"))
    if case.is_initialized:
        assert shell.run(initialize(state_epoch=5, start_offset=0)).error_code == NONE
        assert shell.run(read(leader_epoch=7)).error_code == NONE
    if key_problem(case.operation.key):
        return INVALID
    return shell.run(case.operation).error_code


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_error_code(case: Case) -> None:
    assert answer_of(case) == case.here
    if case.here != case.kafka:
        assert case.why, "what differs from Kafka needs a reason"


GROUPS = ("orders", "grün", "a:b", "\N{GRINNING FACE}", "x" * 300, "g")
TOPIC_IDS = (bytes(range(1, 17)), bytes(16), b"\xff" * 16, (1 << 63).to_bytes(8, "big") + (12345).to_bytes(8, "big"))
PARTITIONS = (0, 7, 2_147_483_647)
PLACES_OF_50 = (
    *(38, 45, 28, 43, 0, 1, 47, 40, 41, 37, 30, 27),
    *(4, 11, 36, 9, 16, 31, 31, 24, 41, 21, 14, 5),
    *(10, 17, 36, 15, 22, 15, 25, 18, 5, 15, 8, 41),
    *(16, 9, 4, 11, 4, 25, 45, 2, 15, 5, 12, 1),
    *(13, 6, 33, 8, 1, 46, 48, 5, 36, 42, 35, 22),
    *(46, 3, 36, 49, 42, 31, 7, 14, 41, 17, 24, 5),
)
"""`Utils.abs(key.asCoordinatorKey().hashCode()) % 50` of Kafka 4.3.1's own classes, in the order of the names above."""


def test_state_partitions_are_those_of_kafka() -> None:
    keys = [
        SharePartitionKey(group_id, topic_id, partition)
        for group_id in GROUPS
        for topic_id in TOPIC_IDS
        for partition in PARTITIONS
    ]
    assert tuple(state_partition_of(key, 50) for key in keys) == PLACES_OF_50
