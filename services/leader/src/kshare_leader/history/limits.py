"""Limits, intervals and retry back-offs of the delivery history."""

from __future__ import annotations

FLUSH_INTERVAL_MS = 200
"""Events of this interval are sent together."""
FLUSH_BYTES = 256 * 1024
"""A buffer of this size is sent at once."""
RECORD_LIMIT_BYTES = 128 * 1024
"""An event that finds a record of this size begins the next one."""
BATCH_LIMIT_BYTES = 768 * 1024
"""The size limit of a record batch before compression; the topic's max.message.bytes also bounds it."""
REQUEST_LIMIT_BYTES = 4 * 1024 * 1024
"""A call to a leader takes no further batch from this size on; the rest is sent in the next round."""
PRODUCE_TIMEOUT_MS = 10_000
RETRY_INTERVAL_MS = 500
"""The first back-off after a failure; it doubles up to RETRY_INTERVAL_MAX_MS."""
RETRY_INTERVAL_MAX_MS = 10_000
STOP_TIMEOUT_MS = 1_000
"""How long a stopping leader tries to send its buffered events."""
NUMBERS_LIMIT = 100_000
"""Share-partitions whose next number is remembered; beyond that, one that is not served is evicted (`numbers`)."""
EVENT_OVERHEAD_BYTES = 60
"""The memory that an event uses in addition to its text."""
