"""Every limit and interval of dead letters, in one place."""

from __future__ import annotations

BATCH_LIMIT_RECORDS = 1_000
"""Dead letters in one batch. Its bytes are bounded by the dead-letter topic's max.message.bytes."""
ARCHIVING_RUNS_LIMIT = 1_000
"""Runs of Archiving records that one batch is made of at most."""
ROUNDS_LIMIT = 32
"""Batches of dead letters that a leader has under way at once; each share-partition has one at most."""
OPENED_BATCH_LIMIT_BYTES = 16 * 1024 * 1024
"""A source batch that is larger after decompression is not opened: its dead letters say only where the records lie."""
APPEND_TIMEOUT_MS = 10_000
RETRY_INTERVAL_MS = 1_000
"""The first wait after a failure; it doubles up to RETRY_INTERVAL_MAX_MS (Kafka's ShareGroupDLQStateManager)."""
RETRY_INTERVAL_MAX_MS = 30_000
STALLED_AFTER_MS = 10_000
"""Dead letters that cannot be stored for so long are a problem in the health check."""
PROBLEMS_LIMIT = 20
"""Share-partitions that the health check names."""
REFUSAL_REPORT_INTERVAL_MS = 60_000
"""How often the log says of a group, for the same reason, that its records are archived without dead letters."""
CHECK_INTERVAL_MS = 1_000
"""How often share-partitions with unfinished dead letters are looked for that are not loaded."""
FORGET_AFTER_MS = 60_000
"""A share-partition without dead letters for so long is not loaded after a restart unless somebody fetches from it."""
LOADS_LIMIT = 100
"""Share-partitions that one look loads at most."""
APPENDED_RUNS_LIMIT = 10_000
"""Runs of offsets of one source that a receiver remembers: as many as the largest window has offsets."""
ROW_KEPT_MS = 7 * 24 * 3_600_000
"""How long a receiver remembers a source whose group has no dead-letter topic any more."""
ROWS_REMOVED_LIMIT = 10_000
"""Rows that one look for unneeded ones removes at most."""
