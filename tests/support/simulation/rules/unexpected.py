"""Log lines at level ERROR, and exceptions that end calls: expected only where a fault explains them.

A StorageFailure is expected where a `MemoryDiskFailure` or `MemoryDiskError` is in its chain of causes: the disk really
refused that very read or write; where a row or a batch is damaged, and the disk really returned wrong bits of that row,
or the bytes of another place of a value file; and in a host that is stopping, whose stores are being closed. A host
without a disk stores in an existing cluster or in etcd: there a StorageFailure is expected once a fault can have made a
call fail (`can_fail_calls`), and so is NOT_COORDINATOR, from one that lost its metadata a moment ago. The same is true
of a move that a leader gives up.
Everything else that a node logs as an error is a bug, and fails the run.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kshare_core.errors import CorruptRecords, ErrorCode, KafkaError, StorageFailure
from kshare_leader.log import keys
from kshare_runtime.checksummed_rows import CorruptRow
from kshare_runtime.large_values.files import DamagedValue
from kshare_runtime.large_values.memory import MemoryDiskError
from kshare_runtime.memory_store import MemoryDiskFailure
from support.simulation.history import History
from support.simulation.loop import DamagedRows, Incarnation, current_incarnation

LOGGERS = ("kshare", "asyncio")
"""The first part of the names of the loggers that are watched."""
UNEXPECTED = "unexpected"
"""A line that says so is never excused: code that knows a failing disk does not call it unexpected."""
MOVE_GIVEN_UP = "%s; asking the coordinator to cancel the move"
"""A leader's word that it takes a move back, which it does under any fault that lasts."""
ASKS_TO_BE_DRAINED = "%s; requesting a drain of this node, in effect until its restart"
"""A share coordinator's word that its disk fails each copy of what moves there."""

WRONG_ROW = re.compile("the row ([0-9a-f]+) of ([^ ]+) has ")
"""In the words of a node that found a damaged row: key and family."""
WRONG_BATCH = re.compile("the batch at offset ([0-9]+) of partition [^ ]+ is damaged")
"""The same of a batch of a leader's log; its row's key ends with the offset."""
WRONG_FILE = re.compile("value file [0-9]+ of [^ ]*/([0-9a-f]+) ")
"""The same of a place in a file, which a row with this prefix names."""

HARMLESS = (
    *("cut-clients", "half-open", "half-closed", "unread-answers", "clock-jump"),
    *("registered", "sees other nodes", "moves", "join", "left", "drained", "all faults end"),
)
"""Names of FaultEvents after which every call between nodes, and to brokers, succeeds as before: faults of clients'
connections, dates that jump, and what is no fault."""


def can_fail_calls(history: History) -> bool:
    """Whether a fault has begun so far that cuts a node or a broker off, stops it or slows it down."""
    return any(name.removeprefix("end of ") not in HARMLESS for name in history.fault_names)


def is_expected(error: BaseException | None, incarnation: Incarnation | None, history: History) -> bool:
    """Whether a failing disk or network, or a host that stops, explains the exception."""
    is_of_network = incarnation is not None and incarnation.stores_remotely and can_fail_calls(history)
    if isinstance(error, KafkaError) and error.code == ErrorCode.NOT_COORDINATOR:
        return is_of_network
    if not isinstance(error, StorageFailure):
        return False
    if is_of_network or (incarnation is not None and incarnation.is_stopping):
        return True
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryDiskFailure | MemoryDiskError):
            return True
        if isinstance(cause, DamagedValue) and incarnation is not None and incarnation.has_misdirected_reads:
            return True
        if isinstance(cause, CorruptRow | CorruptRecords | DamagedValue):
            return incarnation is not None and are_damaged(str(cause), incarnation.damaged_rows)
        cause = cause.__cause__
    return False


def are_damaged(text: str, rows: DamagedRows) -> bool:
    """Whether the disk returned wrong bits of each row that the text names; of any row, where it names none."""
    named = [(family, bytes.fromhex(key)) in rows for key, family in WRONG_ROW.findall(text)]
    log_keys = [key for family, key in rows if family == keys.LOG]
    named += [any(keys.number_of(key) == int(offset) for key in log_keys) for offset in WRONG_BATCH.findall(text)]
    named += [any(key.startswith(bytes.fromhex(prefix)) for key in log_keys) for prefix in WRONG_FILE.findall(text)]
    return all(named) if named else bool(rows)


class _ErrorLines(logging.Handler):
    """Notes each line at level ERROR or above that no failing disk explains."""

    def __init__(self, note: Callable[[str], None], history: History, has_disk_failed: Callable[[str], bool]) -> None:
        super().__init__(logging.ERROR)
        self._note = note
        self._history = history
        self._has_disk_failed = has_disk_failed

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith(LOGGERS):
            return
        incarnation = current_incarnation.get()
        if record.msg == MOVE_GIVEN_UP and can_fail_calls(self._history):
            return
        if record.msg == ASKS_TO_BE_DRAINED and incarnation is not None and self._has_disk_failed(incarnation.host):
            return
        text = record.getMessage()
        if incarnation is not None and WRONG_ROW.search(text) and are_damaged(text, incarnation.damaged_rows):
            return
        arguments = record.args if isinstance(record.args, tuple) else ()
        errors = [argument for argument in arguments if isinstance(argument, BaseException)]
        if record.exc_info is not None and record.exc_info[1] is not None:
            errors.append(record.exc_info[1])
        if errors and UNEXPECTED not in text and all(self._is_expected(error, incarnation) for error in errors):
            return
        self._note(f"{incarnation} logged an error: {text}")

    def _is_expected(self, error: BaseException, incarnation: Incarnation | None) -> bool:
        return is_expected(error, incarnation, self._history)


@contextmanager
def watched_logs(
    note: Callable[[str], None], history: History, has_disk_failed: Callable[[str], bool]
) -> Iterator[None]:
    """While it is entered, `note` gets every unexpected error line of the nodes.

    `history` is that of the run, whose faults may explain a line. `has_disk_failed` says of a host whether its disk has
    refused a write or failed a read so far.

    Also where the caller switched logging off (`logging.disable`): then nothing is shown, and lines below ERROR are not
    even made.
    """
    root = logging.getLogger()
    handlers, disabled = root.handlers, root.manager.disable
    is_quiet = disabled >= logging.ERROR
    watching = _ErrorLines(note, history, has_disk_failed)
    root.handlers = [watching] if is_quiet else [*handlers, watching]
    if is_quiet:
        logging.disable(logging.WARNING)
    try:
        yield
    finally:
        root.handlers = handlers
        logging.disable(disabled)
