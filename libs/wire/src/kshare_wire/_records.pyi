"""The types of the C extension `_records.c`: walks over the records of one batch after decompression.

ValueError where a record cannot be read, except in `check`, which returns the problem.
"""

Buffer = bytes | bytearray | memoryview

def check(
    records: Buffer,
    count: int,
    first_timestamp_ms: int,
    has_fixed_timestamp: bool,
    fixed_timestamp_ms: int,
    needs_keys: bool,
    checks_timestamps: bool,
    lowest_ms: int,
    highest_ms: int,
    errors_limit: int,
    /,
) -> tuple[int, int, int, int, int, list[tuple[int, int, int]]]:
    """Checks `count` records.

    Returns the problem (`record_checks.Problem`), the index of its record, the index of the first record whose offset
    delta is not its index (-1: none), the newest timestamp (-1: none), the number of records with an error of their
    own, and the first `errors_limit` of these: index, kind (`record_checks.NO_KEY` or TIMESTAMP_OUT_OF_RANGE) and
    timestamp.
    """

def find_time(records: Buffer, first_timestamp_ms: int, wanted_ms: int, lowest_delta: int, /) -> tuple[int, int] | None:
    """Offset delta and timestamp of the first record from `lowest_delta` on at `wanted_ms` or newer."""

def newest_time(records: Buffer, first_timestamp_ms: int, lowest_delta: int, /) -> int:
    """The newest timestamp of the records from `lowest_delta` on; -1 where none has one."""

def window(records: Buffer, lowest_delta: int, records_limit: int, headers_limit: int, /) -> tuple[int, int, int, int]:
    """The start of the first record from `lowest_delta` on, the end of as many as the limits, and their number.

    Also the offset delta of that record where it alone has more headers than the limit (-1: it has not).
    """

def take_keys(
    records: Buffer, position: int, records_limit: int, bytes_limit: int, /
) -> tuple[int, list[tuple[int, bytes | None, bool]]]:
    """The next records from byte `position` on: offset delta, key, and whether the value is null.

    Also returns the position after them. It ends with the record that reaches one of the limits.
    """

def keep(
    records: Buffer,
    flags: Buffer,
    old_first_timestamp_ms: int,
    new_first_timestamp_ms: int,
    counts_from_first_kept: bool,
    /,
) -> tuple[bytes, int, int, int]:
    """The records whose flag (a byte for each record) is not 0, with times relative to the new first timestamp.

    That is the first kept record's where `counts_from_first_kept`. Also returns their number, their newest timestamp
    (-1: none), and the new first timestamp.
    """

def lz4_frame_length(data: Buffer, /) -> int:
    """The length of the lz4 frame at the start of `data`; -1 where it is truncated. The blocks are not decompressed."""

def uninitialized(size: int, /) -> bytearray:
    """A buffer with uninitialized bytes, whose memory is used only as far as it is written."""
