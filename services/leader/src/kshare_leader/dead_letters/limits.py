"""Limits, intervals and retry back-offs of dead letters."""

from __future__ import annotations

from kshare_core.states import IN_FLIGHT_OFFSETS_LIMIT

BATCH_LIMIT_RECORDS = 1_000
"""Dead letters in one batch. Its bytes are bounded by the dead-letter topic's max.message.bytes."""
ARCHIVING_RUNS_LIMIT = 1_000
"""The limit of Archiving runs for one batch."""
ROUNDS_LIMIT = 32
"""Batches of dead letters that a leader has in flight at once; each share-partition has at most one."""
OPENED_BATCH_LIMIT_BYTES = 16 * 1024 * 1024
"""A source batch that is larger after decompression is not opened: its dead letters have only positions."""
READ_ATTEMPTS = 5
"""How often a record is read before its dead letter goes without a copy: some 15 s, as a disk may err for a while."""
APPEND_TIMEOUT_MS = 10_000
STATE_CHECK_TIMEOUT_MS = 5_000
"""How long a round whose dead letters were fenced waits for the stored state."""
RETRY_INTERVAL_MS = 1_000
"""The first back-off after a failure; it doubles up to RETRY_INTERVAL_MAX_MS (Kafka's ShareGroupDLQStateManager)."""
RETRY_INTERVAL_MAX_MS = 30_000
STALLED_AFTER_MS = 10_000
"""Dead letters that cannot be stored for this long are a problem in the health check."""
PROBLEMS_LIMIT = 20
"""Share-partitions that the health check names."""
REFUSAL_REPORT_INTERVAL_MS = 60_000
"""How often the log reports, for a group and a reason, that records are archived without dead letters."""
CHECK_INTERVAL_MS = 1_000
"""How often unloaded share-partitions with unfinished dead letters are looked for."""
FORGET_AFTER_MS = 60_000
"""A share-partition without dead letters for this long is loaded after a restart only for a fetch."""
FORGOTTEN_IN_A_WRITE = 1_000
"""Share-partitions that one write removes from the unfinished ones."""
LOADS_LIMIT = 100
"""The limit of share-partitions that one check loads."""
APPENDED_RUNS_LIMIT = IN_FLIGHT_OFFSETS_LIMIT
"""Runs of offsets of one source that a receiver remembers: as many as the largest window has offsets."""
WRITERS_LIMIT = 1_000
"""Sources whose producer and note a leader of the kafka engine keeps; more than ROUNDS_LIMIT."""
ROW_KEPT_MS = 7 * 24 * 3_600_000
"""How long a receiver remembers a source whose group has no dead-letter topic any more."""
ROWS_REMOVED_LIMIT = 10_000
"""The limit of rows that one check for unneeded rows removes."""
