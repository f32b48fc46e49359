"""The metrics of a console."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kshare_servicekit.metric_families import Readings, counter, gauge

REQUESTS = counter("console_requests", "Answers to browsers, by HTTP status.", "status")
CONNECTIONS = gauge("console_connections", "Open connections of browsers.")
REFUSED = counter("console_refused_connections", "Connections beyond --connections-limit.")
STREAMS = gauge("console_streams", "Open live streams.")
SESSIONS = gauge("console_sessions", "Browsers that are signed in.")

FAMILIES = (REQUESTS, CONNECTIONS, REFUSED, STREAMS, SESSIONS)


class ConsoleMetrics:
    """Reads the numbers of a running console."""

    def __init__(self, requests: Mapping[int, int], numbers: Callable[[], tuple[float, float, float, float]]) -> None:
        """`numbers` are connections, refused connections, streams and sessions."""
        self._requests = requests
        self._numbers = numbers

    def read(self, readings: Readings) -> None:
        for status, count in self._requests.items():
            readings.add(REQUESTS, count, str(status))
        for family, number in zip((CONNECTIONS, REFUSED, STREAMS, SESSIONS), self._numbers(), strict=True):
            readings.add(family, number)
