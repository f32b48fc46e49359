"""Every limit, interval and retry of the leader's share-partitions, in one place."""

from __future__ import annotations

WAITING_FETCHES_LIMIT = 10_000
"""Fetches that wait for records; one more is answered at once, without records."""
SHARE_PARTITIONS_PER_WRITE_LIMIT = 100
"""Share-partitions in one WriteShareGroupState request."""
READ_CHUNK_BYTES = 1 << 20
"""How much of a log is read at once."""
FRUITLESS_READS_LIMIT = 2
"""After so many reads without a record for the group, a fetch leaves the rest of the stretch to the scan."""
PENDING_CHANGES_LIMIT = 500
"""Acknowledgements and releases of one share-partition that wait for their write; beyond it nothing is acquired."""
WRITE_LAG_LIMIT_MS = 1_000
"""While a state write of a share-partition has been under way for longer, nothing is acquired there."""
RETRY_INTERVAL_MS = 50
"""The first wait before a state RPC is sent again; it doubles up to RETRY_INTERVAL_MAX_MS."""
RETRY_INTERVAL_MAX_MS = 1_000
STATE_CALL_TIMEOUT_MS = 2_000
"""How long one attempt of a state RPC may take; the whole is limited by share.coordinator.write.timeout.ms."""
CATALOG_CALL_TIMEOUT_MS = 2_000
"""How long one attempt to learn the catalog's version may take."""
CATALOG_WAIT_MS = 2_000
"""How long to wait for this leader's view to have that version; then the version is asked for again."""
WRITE_ATTEMPT_MIN_MS = 200
"""A state write is sent again only with so much of its time left: one that is cut off has an unknown outcome."""
FAILED_WRITE_PAUSE_MS = 1_000
"""How long lock timeouts wait after a write that the share coordinator refused."""
IDLE_CHECK_INTERVAL_MS = 60_000
IDLE_UNLOAD_MS = 300_000
"""A share-partition that nobody uses for so long is taken out of memory."""
PROBLEMS_LIMIT = 20
"""Share-partitions that the health check names."""
SLOW_LOAD_MS = 10_000
"""A share-partition that loads for longer is a problem in the health check."""
