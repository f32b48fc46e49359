"""Limits, intervals and retry back-offs of the leader's share-partitions."""

from __future__ import annotations

WAITING_FETCHES_LIMIT = 10_000
"""Fetches that wait for records; any further fetch is answered after WAITING_PAUSE_MS, without records."""
WAITING_PAUSE_MS = 200
"""Keeps clients from a tight retry loop while too many fetches wait."""
REMEMBERED_PARTITIONS_LIMIT = 1_000_000
"""Partitions of all remembered fetch sessions; fetches of further sessions name all of theirs, as before."""
LOOK_UP_INTERVAL_MS = 1_000
"""How often a fetch session looks up all of its share-partitions."""
SHARE_PARTITIONS_PER_WRITE_LIMIT = 100
"""Share-partitions in one WriteShareGroupState request."""
READ_CHUNK_BYTES = 1 << 20
"""Bytes of a log that one read returns."""
FIRST_READ_BYTES = 64 * 1024
"""Bytes of a fetch's first read, before it knows how many bytes its records have."""
FRUITLESS_READS_LIMIT = 2
"""After this many reads without a record for the group, a fetch leaves the rest of the stretch to the scan."""
PENDING_CHANGES_LIMIT = 500
"""Acknowledgements and releases of one share-partition that wait for their write; at this limit it acquires none."""
WRITE_LAG_LIMIT_MS = 1_000
"""While a state write of a share-partition has been in flight for this long, no records are acquired there."""
RETRY_INTERVAL_MS = 50
"""The first back-off before a state RPC is retried; it doubles up to RETRY_INTERVAL_MAX_MS."""
RETRY_INTERVAL_MAX_MS = 1_000
REFUSED_LOADS_LIMIT = 10_000
"""Share-partitions whose refused load is remembered for the back-off."""
STATE_CALL_TIMEOUT_MS = 2_000
"""The timeout of one attempt of a state RPC; share.coordinator.write.timeout.ms limits all attempts together."""
CATALOG_CALL_TIMEOUT_MS = 2_000
"""The timeout of one attempt to read the catalog's version."""
CATALOG_WAIT_MS = 2_000
"""How long to wait for this leader's view to have that version; then the version is read again."""
WRITE_ATTEMPT_MIN_MS = 200
"""The time that must be left to retry a state write: one that is cut off has an unknown outcome."""
FAILED_WRITE_PAUSE_MS = 1_000
"""How long lock timeouts wait after a write that the share coordinator refused."""
IDLE_CHECK_INTERVAL_MS = 60_000
IDLE_UNLOAD_MS = 300_000
"""A share-partition that is unused for this long is unloaded."""
PROBLEMS_LIMIT = 20
"""Share-partitions that the health check names."""
SLOW_LOAD_MS = 10_000
"""A share-partition that loads for longer is a problem in the health check."""
