"""The checks of a produced batch's records, with the rules and errors of LogValidator of Kafka 4.3.

The header was checked before (`record_batches.read_produced_batch`). Here the records are decompressed within a limit
and walked over in C. The walk checks lengths, the count against the header's, headers of records, offset deltas, keys
where the topic is compacted, and timestamps where the topic bounds them.

Kafka's codes: INVALID_RECORD for records that cannot be read, UNKNOWN_SERVER_ERROR for bytes that cannot be
decompressed. For a batch with errors of single records, the error names these (`InvalidRecords.record_errors`).

Stricter than Kafka, which stores these although consumers cannot read them: a compressed batch whose record is longer
or shorter than its length says, bytes after an lz4 frame, and offset deltas other than 0, 1, 2, ... without
compression. All are INVALID_RECORD. On a topic with CreateTime, a batch that says LogAppendTime is checked by the times
of its records, which the log takes, not by the batch's one.
"""

from __future__ import annotations

from typing import NamedTuple

from kshare_core.errors import ErrorCode, KafkaError
from kshare_wire import _records
from kshare_wire.decompression import BytesAfterStream, CannotDecompress, DecompressesTooFar, decompressed
from kshare_wire.record_batches import HEADER_LENGTH, NO_TIMESTAMP, BatchHeader

RECORD_ERRORS_LIMIT = 1_000
"""The most records that one refusal names."""

NO_KEY, TIMESTAMP_OUT_OF_RANGE = 1, 2

_LENGTH_IS_NO_VARINT = 1
PROBLEMS = (
    "",
    "its length is not a varint of at most five bytes",
    "the records end before it",
    "it is longer or shorter than its length says",
    "its fields do not fit into it",
    "its headers do not fit into it, or a header has no key",
    "bytes follow the last record",
)
"""The problems that `_records.check` finds, by number."""
_SHOWN_ERRORS = 3


class RecordRules(NamedTuple):
    """The rules of a topic for each record. `partition` is the topic partition's name in messages."""

    partition: str
    needs_keys: bool
    log_append_time: bool
    lowest_ms: int
    highest_ms: int
    limit_bytes: int
    """The most bytes that a batch may decompress to (kshare.max.decompressed.batch.bytes)."""


class RecordError(NamedTuple):
    """The error of one record of a batch (ProduceResponse.RecordErrors)."""

    batch_index: int
    message: str


class InvalidRecords(KafkaError):
    """Records of a batch were refused, each with its own error."""

    def __init__(self, code: ErrorCode, message: str, record_errors: tuple[RecordError, ...]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


def check_records(batch: memoryview, header: BatchHeader, rules: RecordRules, limit_bytes: int | None = None) -> int:
    """Checks the batch's records; returns their newest timestamp, -1 where none has one.

    KafkaError where the batch must not be appended: INVALID_RECORD, INVALID_TIMESTAMP, UNKNOWN_SERVER_ERROR, and
    MESSAGE_TOO_LARGE where it decompresses further than `rules.limit_bytes`. With a lower `limit_bytes`,
    DecompressesTooFar instead of the latter: nothing was decided.
    """
    allowed_bytes = rules.limit_bytes if limit_bytes is None else limit_bytes
    wrong_type = header.is_log_append_time and (rules.log_append_time or header.max_timestamp_ms == NO_TIMESTAMP)
    try:
        found = _walked(batch, header, rules, allowed_bytes, wrong_type)
    except CannotDecompress as error:
        code = ErrorCode.INVALID_RECORD if isinstance(error, BytesAfterStream) else ErrorCode.UNKNOWN_SERVER_ERROR
        raise KafkaError(code, f"the records of the batch cannot be decompressed: {error}") from None
    except DecompressesTooFar as error:
        if allowed_bytes < rules.limit_bytes:
            raise
        text = f"{error} (kshare.max.decompressed.batch.bytes)"
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text) from None
    problem, index, wrong_offset, newest_ms, error_count, errors = found
    if problem:
        raise _unreadable(header, problem, index)
    if error_count:
        raise _refusal(rules, error_count, errors, wrong_type)
    if wrong_offset >= 0:
        code = ErrorCode.UNKNOWN_SERVER_ERROR if header.compression else ErrorCode.INVALID_RECORD
        raise KafkaError(code, f"record {wrong_offset} of the batch must have offset delta {wrong_offset}")
    return newest_ms


def _walked(
    batch: memoryview, header: BatchHeader, rules: RecordRules, limit_bytes: int, wrong_type: bool
) -> tuple[int, int, int, int, int, list[tuple[int, int, int]]]:
    """The result of `_records.check`. A separate function, so that no traceback keeps the decompressed records."""
    return _records.check(
        decompressed(batch[HEADER_LENGTH : header.size], header.compression, limit_bytes),
        header.record_count,
        header.first_timestamp_ms,
        # In a batch that says LogAppendTime, the log takes the records' own times, so these have to be in the range.
        wrong_type,
        0,
        rules.needs_keys,
        wrong_type or not rules.log_append_time,
        1 if wrong_type else rules.lowest_ms,
        0 if wrong_type else rules.highest_ms,
        RECORD_ERRORS_LIMIT,
    )


def _unreadable(header: BatchHeader, problem: int, index: int) -> KafkaError:
    is_server_error = problem == _LENGTH_IS_NO_VARINT and not header.compression
    code = ErrorCode.UNKNOWN_SERVER_ERROR if is_server_error else ErrorCode.INVALID_RECORD
    text = f"record {index} of {header.record_count} in the batch cannot be read: {PROBLEMS[problem]}"
    return KafkaError(code, text)


def _refusal(
    rules: RecordRules, error_count: int, errors: list[tuple[int, int, int]], wrong_type: bool
) -> InvalidRecords:
    found = tuple(RecordError(index, _text(rules, index, kind, time_ms, wrong_type)) for index, kind, time_ms in errors)
    if any(kind == TIMESTAMP_OUT_OF_RANGE for _, kind, _ in errors):
        text = "One or more records have been rejected due to invalid timestamp"
        return InvalidRecords(ErrorCode.INVALID_TIMESTAMP, text, found)
    shown = ", ".join(f"RecordError(batchIndex={index}, message='{why}')" for index, why in found[:_SHOWN_ERRORS])
    text = (
        f"One or more records have been rejected due to {error_count} record errors in total, and only showing the "
        f"first three errors at most: [{shown}]"
    )
    return InvalidRecords(ErrorCode.INVALID_RECORD, text, found)


def _text(rules: RecordRules, index: int, kind: int, timestamp_ms: int, wrong_type: bool) -> str:
    if kind == NO_KEY:
        return f"Compacted topic cannot accept message without key in topic partition {rules.partition}"
    if wrong_type:
        return (
            f"Invalid timestamp type in message with offset {index}. Producer should not set timestamp type to "
            "LogAppendTime."
        )
    return (
        f"Timestamp {timestamp_ms} of message with offset {index} is out of range. The timestamp should be within "
        f"[{rules.lowest_ms}, {rules.highest_ms}]"
    )
