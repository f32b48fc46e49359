"""Every limit and interval of the delivery history, in one place."""

from __future__ import annotations

FLUSH_INTERVAL_MS = 200
"""What is told within so long goes together."""
FLUSH_BYTES = 256 * 1024
"""So much goes at once."""
RECORD_LIMIT_BYTES = 128 * 1024
"""An event that finds a record of this size begins the next one."""
BATCH_LIMIT_BYTES = 768 * 1024
"""Of one record batch, before compression; also the topic's max.message.bytes bounds it."""
REQUEST_LIMIT_BYTES = 4 * 1024 * 1024
"""A call to a leader that has so much takes no other batch; the rest goes with the next round."""
PRODUCE_TIMEOUT_MS = 10_000
RETRY_INTERVAL_MS = 500
"""The first wait after a failure; it doubles up to RETRY_INTERVAL_MAX_MS."""
RETRY_INTERVAL_MAX_MS = 10_000
STOP_TIMEOUT_MS = 1_000
"""How long a leader that stops tries to send what it has."""
NUMBERS_LIMIT = 100_000
"""Share-partitions whose next number is remembered; beyond that, one that is not served makes room (`numbers`)."""
EVENT_OVERHEAD_BYTES = 60
"""What an event costs in memory beyond its text."""
