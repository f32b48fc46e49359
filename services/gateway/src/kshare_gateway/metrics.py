"""Metrics of a gateway.

A request costs two clock readings and one observation; a response costs a walk over its error codes (one for each
partition).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kshare_core.distribution import DURATION_BOUNDS_S, Distribution, no_clock
from kshare_core.errors import ErrorCode
from kshare_core.tracing import current_traceparent
from kshare_servicekit.metric_families import Readings, counter, gauge, histogram
from kshare_wire.error_codes import error_codes
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.messages import Response

REQUEST_SECONDS = histogram(
    "gateway_request_duration_seconds",
    "Duration of client requests by API and version until the response is built, in seconds, including a fetch's wait "
    "(Kafka: RequestMetrics TotalTimeMs).",
    "api",
    "version",
)
REQUESTS_UNDER_WAY = gauge("gateway_requests_under_way", "Requests whose responses are not written yet.")
ERRORS = counter(
    "gateway_errors",
    "Error codes in responses, by API and Kafka's error name; each partition counts (Kafka: ErrorsPerSec).",
    "api",
    "error",
)
CONNECTIONS = gauge("gateway_connections", "Open client connections.")
CONNECTIONS_ACCEPTED = counter("gateway_connections_accepted", "Accepted client connections.")
CONNECTIONS_REFUSED = counter(
    "gateway_connections_refused",
    "Refused connections: beyond max.connections or max.connections.per.ip, or while stopping.",
)
CONNECTIONS_CLOSED = counter(
    "gateway_connections_closed_by_gateway",
    "Connections closed by the gateway: idle, or with a malformed request; the service log has the reason.",
)
HANDSHAKES_FAILED = counter(
    "gateway_tls_handshakes_failed",
    "Failed TLS handshakes: no TLS, a missing client certificate, a timeout, or a disconnect (Kafka: "
    "failed-authentication-total).",
)
CERTIFICATE_EXPIRY = gauge(
    "gateway_certificate_expiry_timestamp_seconds",
    "Expiry of a TLS listener's certificate that expires first, in seconds since 1970.",
    "listener",
)
BYTES_IN = counter("gateway_received_bytes", "Bytes received from clients.")
BYTES_OUT = counter("gateway_sent_bytes", "Bytes of responses written to clients' sockets.")
SHARE_SESSIONS = gauge("gateway_share_sessions", "Open share sessions; group.share.max.share.sessions limits them.")
CACHE_BYTES = gauge(
    "gateway_cache_bytes", "Memory of the batches in the read-ahead cache; kshare.gateway.cache.bytes limits it."
)
CACHE_HIT_BYTES = counter("gateway_cache_hit_bytes", "Record bytes of ShareFetch responses served from the cache.")
CACHE_MISS_BYTES = counter("gateway_cache_miss_bytes", "Record bytes of ShareFetch responses sent by the leader.")
READ_AHEAD_BYTES = counter("gateway_read_ahead_bytes", "Record bytes fetched by read-ahead.")
READ_AHEAD_FAILURES = counter("gateway_read_ahead_failures", "Failed read-aheads; they lose no data.")
MEMORY_BYTES = gauge(
    "gateway_queued_bytes",
    "Bytes of requests (including half-received ones) and responses, and the most that fetches in flight may return.",
)
MEMORY_LIMIT_BYTES = gauge(
    "gateway_queued_limit_bytes", "The limit of gateway_queued_bytes, from kshare.queued.max.bytes."
)
MUTED_CONNECTIONS = gauge(
    "gateway_muted_connections", "Connections not being read, because they hold more memory than is left."
)
FETCHES_WITHOUT_ROOM = gauge("gateway_fetches_waiting_for_room", "Fetches waiting for memory for their response.")
SLOW_CONNECTIONS_CLOSED = counter(
    "gateway_slow_connections_closed",
    "Connections closed because they held memory without progress while others waited "
    "(kshare.gateway.stalled.connection.ms).",
)
THROTTLE_SECONDS = counter(
    "gateway_throttle_seconds",
    "Times for which clients were throttled, by the quota that they exceeded.",
    "quota",
)

FAMILIES = (
    *(REQUEST_SECONDS, REQUESTS_UNDER_WAY, ERRORS),
    *(CONNECTIONS, CONNECTIONS_ACCEPTED, CONNECTIONS_REFUSED, CONNECTIONS_CLOSED, BYTES_IN, BYTES_OUT),
    *(HANDSHAKES_FAILED, CERTIFICATE_EXPIRY, THROTTLE_SECONDS),
    *(MEMORY_BYTES, MEMORY_LIMIT_BYTES, MUTED_CONNECTIONS, FETCHES_WITHOUT_ROOM, SLOW_CONNECTIONS_CLOSED),
    *(SHARE_SESSIONS, CACHE_BYTES, CACHE_HIT_BYTES, CACHE_MISS_BYTES, READ_AHEAD_BYTES, READ_AHEAD_FAILURES),
)


class GatewayMetrics:
    """The counters of a gateway, kept by connections and share fetches; `now` is a steady clock in seconds."""

    def __init__(self) -> None:
        self.now: Callable[[], float] = no_clock
        self.requests: dict[tuple[int, int], Distribution] = {}
        """Durations by API key and version."""
        self.errors: dict[tuple[int, int], int] = {}
        """By API key and error code."""
        self.connections_accepted = 0
        self.connections_refused = 0
        self.connections_closed = 0
        self.handshakes_failed = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.cache_hit_bytes = 0
        self.cache_miss_bytes = 0
        self.read_ahead_bytes = 0
        self.read_ahead_failures = 0

    def answered(self, api_key: int, version: int, seconds: float) -> None:
        """Observes the duration of a request that the gateway serves in this version."""
        durations = self.requests.get((api_key, version))
        if durations is None:
            durations = self.requests[api_key, version] = Distribution(DURATION_BOUNDS_S)
        durations.observe(seconds)
        traceparent = current_traceparent.get()
        if traceparent:
            durations.exemplify(seconds, traceparent)

    def note_errors(self, response: Response) -> None:
        """Counts the error codes of a response."""
        for code in error_codes(response):
            self.errors[response.API_KEY, code] = self.errors.get((response.API_KEY, code), 0) + 1

    def note_codes(self, api_key: int, codes: Iterable[int]) -> None:
        """Like `note_errors`, for many codes that were collected in slices."""
        for code, times in Counter(codes).items():
            self.errors[api_key, code] = self.errors.get((api_key, code), 0) + times


class GatewayNow(NamedTuple):
    """Current values for the gauges."""

    connections: int
    requests_under_way: int
    share_sessions: int
    cache_bytes: int
    queued_bytes: int = 0
    queued_limit_bytes: int = 0
    muted_connections: int = 0
    fetches_without_room: int = 0
    slow_connections_closed: int = 0
    certificate_expiry_s: Mapping[str, float] = {}
    """By the names of TLS listeners, in seconds since 1970."""
    throttled_ms: Mapping[str, int] = {}
    """The sum of throttle times by quota."""


class GatewaySource:
    """Source of a gateway's metrics for a scrape."""

    def __init__(self, metrics: GatewayMetrics, now: Callable[[], GatewayNow]) -> None:
        self._metrics = metrics
        self._now = now

    def read(self, readings: Readings) -> None:
        metrics, now = self._metrics, self._now()
        for (api_key, version), durations in metrics.requests.items():
            readings.add(REQUEST_SECONDS, durations, ApiKey(api_key).api_name, str(version))
        for (api_key, code), count in metrics.errors.items():
            readings.add(ERRORS, count, ApiKey(api_key).api_name, _error_name(code))
        readings.add(REQUESTS_UNDER_WAY, now.requests_under_way)
        readings.add(CONNECTIONS, now.connections)
        readings.add(SHARE_SESSIONS, now.share_sessions)
        readings.add(CACHE_BYTES, now.cache_bytes)
        readings.add(MEMORY_BYTES, now.queued_bytes)
        readings.add(MEMORY_LIMIT_BYTES, now.queued_limit_bytes)
        readings.add(MUTED_CONNECTIONS, now.muted_connections)
        readings.add(FETCHES_WITHOUT_ROOM, now.fetches_without_room)
        readings.add(SLOW_CONNECTIONS_CLOSED, now.slow_connections_closed)
        readings.add(CONNECTIONS_ACCEPTED, metrics.connections_accepted)
        readings.add(CONNECTIONS_REFUSED, metrics.connections_refused)
        readings.add(CONNECTIONS_CLOSED, metrics.connections_closed)
        readings.add(HANDSHAKES_FAILED, metrics.handshakes_failed)
        for listener, expires_at_s in now.certificate_expiry_s.items():
            readings.add(CERTIFICATE_EXPIRY, expires_at_s, listener)
        for quota, throttled_ms in now.throttled_ms.items():
            readings.add(THROTTLE_SECONDS, throttled_ms / 1000, quota)
        readings.add(BYTES_IN, metrics.received_bytes)
        readings.add(BYTES_OUT, metrics.sent_bytes)
        readings.add(CACHE_HIT_BYTES, metrics.cache_hit_bytes)
        readings.add(CACHE_MISS_BYTES, metrics.cache_miss_bytes)
        readings.add(READ_AHEAD_BYTES, metrics.read_ahead_bytes)
        readings.add(READ_AHEAD_FAILURES, metrics.read_ahead_failures)


def _error_name(code: int) -> str:
    """Kafka's name of the error code; its number where this version of kshare has none."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
