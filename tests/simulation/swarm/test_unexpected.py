"""Error lines of nodes fail a seed, unless a fault explains them; one that says "unexpected" always does."""

from __future__ import annotations

import logging

import pytest

from kshare_core.errors import CorruptRecords, ErrorCode, KafkaError, StorageFailure
from kshare_leader.log import keys
from kshare_runtime.checksummed_rows import CorruptRow
from kshare_runtime.large_values.files import DamagedValue
from kshare_runtime.memory_store import MemoryDiskFailure
from support.simulation.history import FaultEvent, History
from support.simulation.loop import Incarnation
from support.simulation.rules.unexpected import (
    HARMLESS,
    MOVE_GIVEN_UP,
    can_fail_calls,
    is_expected,
    watched_logs,
)
from support.simulation.swarm import FAULT_KINDS

OF_THE_DISK = MemoryDiskFailure("No space left on device")
LOST_METADATA = KafkaError(ErrorCode.NOT_COORDINATOR, "it is another")
PREFIX = bytes(range(keys.PARTITION_PREFIX_BYTES))


def history_of(*names: str) -> History:
    history = History()
    for name in names:
        history.add(FaultEvent(1.0, name, (), ""))
    return history


@pytest.mark.parametrize(
    ("text", "error", "is_noted"),
    [
        ("appends failed: %s", OF_THE_DISK, False),
        ("appends failed: %s", StorageFailure("no disk refused it"), True),
        ("appends failed: %s", ValueError("planted"), True),
        ("Produce failed with an unexpected error: %s", OF_THE_DISK, True),
    ],
)
def test_error_lines(text: str, error: Exception, is_noted: bool) -> None:
    noted: list[str] = []
    with watched_logs(noted.append, history_of("crash"), lambda host: False):
        logging.getLogger("kshare_leader.node").error(text, error)
        logging.getLogger("kshare_leader.node").warning(text, error)
        logging.getLogger("another.library").error(text, error)
    assert len(noted) == is_noted


FAULTS_SO_FAR = [
    ((), False),
    (("registered", "sees other nodes", "moves", "join", "all faults end"), False),
    (("cut-clients", "clock-jump", "end of unread-answers"), False),
    (("clock-jump", "pause"), True),
    (("end of isolate",), True),
    (("etcd-cut",), True),
    (("leave",), True),
]


@pytest.mark.parametrize(("faults", "can_fail"), FAULTS_SO_FAR)
def test_a_call_fails_only_after_a_fault_that_can_cause_it(faults: tuple[str, ...], can_fail: bool) -> None:
    history = history_of(*faults)
    assert can_fail_calls(history) == can_fail
    with_disk, without_disk = Incarnation("leader-1", 1), Incarnation("coordinator-1", 1)
    without_disk.stores_remotely = True
    for error in (StorageFailure("no broker answered"), LOST_METADATA):
        assert is_expected(error, without_disk, history) == can_fail
        assert not is_expected(error, with_disk, history)
    noted: list[str] = []
    with watched_logs(noted.append, history, lambda host: False):
        logging.getLogger("kshare_leader.reassignment").error(MOVE_GIVEN_UP, "no answer")
    assert bool(noted) == (not can_fail)


def test_what_is_harmless_is_a_kind_of_fault_or_no_fault() -> None:
    kinds = {kind.name for kind in FAULT_KINDS}
    of_others = {"registered", "sees other nodes", "moves", "join", "left", "drained", "all faults end"}
    assert set(HARMLESS) - of_others < kinds, "a name has changed"


ROW = CorruptRow(f"the row {b'key'.hex()} of state has a wrong checksum")
BATCH = CorruptRecords("the batch at offset 7 of partition abc-0 is damaged: its CRC is wrong")
FILE = DamagedValue(f"value file 3 of /leader/{PREFIX.hex()} ends before byte 9, which a row needs")


@pytest.mark.parametrize(
    ("error", "flipped", "expected"),
    [
        (ROW, ("state", b"key"), True),
        (ROW, ("state", b"other"), False),
        (ROW, ("other", b"key"), False),
        (BATCH, (keys.LOG, keys.long_key(PREFIX, 7)), True),
        (BATCH, (keys.LOG, keys.long_key(PREFIX, 8)), False),
        (BATCH, (keys.META, keys.long_key(PREFIX, 7)), False),
        (FILE, (keys.LOG, keys.long_key(PREFIX, 7)), True),
        (FILE, (keys.LOG, keys.long_key(PREFIX[::-1], 7)), False),
        (CorruptRecords("a text that names no row"), ("state", b"key"), True),
        (CorruptRecords("a text that names no row"), None, False),
        (ROW, None, False),
    ],
)
def test_damage_is_expected_of_the_rows_of_which_a_bit_was_flipped(
    error: StorageFailure, flipped: tuple[str, bytes] | None, expected: bool
) -> None:
    incarnation = Incarnation("leader-1", 1)
    if flipped is not None:
        incarnation.damaged_rows[flipped] = None
    assert is_expected(error, incarnation, history_of("flipped-bits")) == expected
    noted: list[str] = []
    with watched_logs(noted.append, history_of("flipped-bits"), lambda host: False):
        incarnation.context.run(logging.getLogger("kshare_leader.node").error, "a read failed: %s", error)
    assert bool(noted) == (not expected)
