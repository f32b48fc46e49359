"""Log lines at level ERROR, and exceptions that end calls: expected only where the simulated disk failed.

A StorageFailure is expected where a `MemoryDiskFailure` or `MemoryDiskError` is in its chain of causes: the disk really
refused that very read or write; where a checksum was wrong, and the disk really returned wrong bits; and in a host that
is stopping, whose stores are being closed. A host without a disk stores in an existing cluster: there each
StorageFailure is expected, because the network and the brokers fail, and so is NOT_COORDINATOR, from one that lost its
metadata a moment ago. Everything else that a node logs as an error is a bug, and fails the run.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kshare_core.errors import CorruptRecords, ErrorCode, KafkaError, StorageFailure
from kshare_runtime.checksummed_rows import CorruptRow
from kshare_runtime.large_values.files import DamagedValue
from kshare_runtime.large_values.memory import MemoryDiskError
from kshare_runtime.memory_store import MemoryDiskFailure
from support.simulation.loop import Incarnation, current_incarnation

LOGGERS = ("kshare", "asyncio")
"""The first part of the names of the loggers that are watched."""
UNEXPECTED = "unexpected"
"""A line that says so is never excused: code that knows a failing disk does not call it unexpected."""
MOVE_GIVEN_UP = "%s; asking the coordinator to cancel the move"
"""A leader's word that it takes a move back, which it does under any fault that lasts."""
ASKS_TO_BE_DRAINED = "%s; requesting a drain of this node, in effect until its restart"
"""A share coordinator's word that its disk fails each copy of what moves there."""

WRONG_ROW = re.compile("the row [0-9a-f]+ of [^ ]+ has ")
"""In the words of a node that found a damaged row."""


def is_expected(error: BaseException | None, incarnation: Incarnation | None) -> bool:
    """Whether a failing disk or network, or a host that stops, explains the exception."""
    if isinstance(error, KafkaError) and error.code == ErrorCode.NOT_COORDINATOR:
        return incarnation is not None and incarnation.stores_remotely
    if not isinstance(error, StorageFailure):
        return False
    if incarnation is not None and (incarnation.is_stopping or incarnation.stores_remotely):
        return True
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryDiskFailure | MemoryDiskError):
            return True
        if isinstance(cause, CorruptRow | CorruptRecords | DamagedValue):
            return incarnation is not None and incarnation.has_read_damage
        cause = cause.__cause__
    return False


class _ErrorLines(logging.Handler):
    """Notes each line at level ERROR or above that no failing disk explains."""

    def __init__(self, note: Callable[[str], None], has_disk_failed: Callable[[str], bool]) -> None:
        super().__init__(logging.ERROR)
        self._note = note
        self._has_disk_failed = has_disk_failed

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith(LOGGERS):
            return
        incarnation = current_incarnation.get()
        if record.msg == MOVE_GIVEN_UP:
            return
        if record.msg == ASKS_TO_BE_DRAINED and incarnation is not None and self._has_disk_failed(incarnation.host):
            return
        if incarnation is not None and incarnation.has_read_damage and WRONG_ROW.search(record.getMessage()):
            return
        arguments = record.args if isinstance(record.args, tuple) else ()
        errors = [argument for argument in arguments if isinstance(argument, BaseException)]
        if record.exc_info is not None and record.exc_info[1] is not None:
            errors.append(record.exc_info[1])
        says_unexpected = UNEXPECTED in record.getMessage()
        if errors and not says_unexpected and all(is_expected(error, incarnation) for error in errors):
            return
        self._note(f"{incarnation} logged an error: {record.getMessage()}")


@contextmanager
def watched_logs(note: Callable[[str], None], has_disk_failed: Callable[[str], bool]) -> Iterator[None]:
    """While it is entered, `note` gets every unexpected error line of the nodes.

    `has_disk_failed` says of a host whether its disk has refused a write or failed a read so far.

    Also where the caller switched logging off (`logging.disable`): then nothing is shown, and lines below ERROR are not
    even made.
    """
    root = logging.getLogger()
    handlers, disabled = root.handlers, root.manager.disable
    is_quiet = disabled >= logging.ERROR
    watching = _ErrorLines(note, has_disk_failed)
    root.handlers = [watching] if is_quiet else [*handlers, watching]
    if is_quiet:
        logging.disable(logging.WARNING)
    try:
        yield
    finally:
        root.handlers = handlers
        logging.disable(disabled)
