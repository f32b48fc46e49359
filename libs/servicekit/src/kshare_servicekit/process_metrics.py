"""The metrics of every process, whatever its role: health, its build, the event loop, and calls between roles."""

from __future__ import annotations

import asyncio
import os
import platform
from collections import Counter
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from kshare_core.distribution import Distribution
from kshare_rpc.call_statistics import CallStatistics, MethodStatistics
from kshare_rpc.exchange.tls import ExchangeTls
from kshare_servicekit.memory.giving_back import MemoryReturn, resident_bytes
from kshare_servicekit.metric_families import Readings, counter, gauge, histogram

LAG_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

BUILD_INFO = gauge("build_info", "Always 1; the labels have the versions.", "version", "python")
HEALTHY = gauge("node_healthy", "1 while the node is healthy by its health service, else 0.", "role", "node_id")
PROBLEMS = gauge(
    "node_problems", "Number of problems that make the node unhealthy; the service log lists them.", "role", "node_id"
)
LOOP_LAG = histogram("event_loop_lag_seconds", "Delay of event loop timers, sampled four times a second.")
READ_FAILURES = counter("metrics_read_failures", "Scrapes in which some metrics could not be read, which is a bug.")
CLIENT_DURATION = histogram(
    "rpc_client_call_duration_seconds",
    "Duration of calls to other roles until the response or failure; some are long polls.",
    "service",
    "method",
)
CLIENT_UNDER_WAY = gauge("rpc_client_calls_under_way", "Calls to other roles in flight.", "service", "method")
CLIENT_FAILURES = counter(
    "rpc_client_call_failures",
    "Failed calls by kind: CallNotStarted and ConnectTimeout had no effect, ChannelUnavailable and CallTimeout have an "
    "unknown outcome, CallFailed was refused or failed at the server.",
    "service",
    "method",
    "kind",
)
SERVER_DURATION = histogram(
    "rpc_server_call_duration_seconds",
    "Duration of calls served for other roles, from request to response; some are long polls.",
    "service",
    "method",
)
SERVER_UNDER_WAY = gauge("rpc_server_calls_under_way", "Calls being served.", "service", "method")
SERVER_FAILURES = counter(
    "rpc_server_call_failures",
    "Calls answered with a failure: a malformed request, an exception in the handler, or a stop before the response.",
    "service",
    "method",
    "kind",
)
UNREAD_ANSWERS = gauge(
    "rpc_server_unread_answer_bytes",
    "Bytes of responses that other roles have not read yet; at a leader kshare.queued.max.bytes limits them.",
)
MEMORY_BUDGET = gauge("memory_budget_bytes", "Resident memory that the process keeps to; see kshare.memory.budget.")
MEMORY_RESIDENT = gauge("memory_resident_bytes", "Resident memory (RSS) of the process.")
CACHE_USED = gauge("memory_cache_bytes", "Bytes that a cache holds, which it gives back when asked.", "cache")
CACHE_LIMIT = gauge("memory_cache_limit_bytes", "The limit of a cache, derived from the budget or set.", "cache")
TIMES_QUIET = counter("memory_given_back", "How often the process gave memory back because it was quiet.")
TIMES_OVER_BUDGET = counter("memory_over_budget", "Checks, one every 5 s, that found more resident than the budget.")
DATA_FREE = gauge(
    "data_directory_free_bytes", "Free space of the file system with the process's data directory.", "directory"
)
DATA_SIZE = gauge(
    "data_directory_size_bytes", "Size of the file system with the process's data directory.", "directory"
)
ROLE_CERTIFICATE_EXPIRY = gauge(
    "role_certificate_expiry_timestamp_seconds",
    "When the first of the process's own certificates of kshare.rpc.ssl.keystore.location expires.",
)

FAMILIES = (
    *(BUILD_INFO, HEALTHY, PROBLEMS, LOOP_LAG, READ_FAILURES),
    *(CLIENT_DURATION, CLIENT_UNDER_WAY, CLIENT_FAILURES, SERVER_DURATION, SERVER_UNDER_WAY, SERVER_FAILURES),
    *(UNREAD_ANSWERS, MEMORY_BUDGET, MEMORY_RESIDENT, CACHE_USED, CACHE_LIMIT, TIMES_QUIET, TIMES_OVER_BUDGET),
    *(DATA_FREE, DATA_SIZE, ROLE_CERTIFICATE_EXPIRY),
)


class MeasuredHealth(NamedTuple):
    """A node whose health is exported."""

    role: str
    node_id: int
    problems: Callable[[], list[str]]


class DiskUsage(NamedTuple):
    """A file system's space, as its users without privileges have it."""

    free_bytes: int
    size_bytes: int


def _disk_usage(directory: Path) -> DiskUsage | None:
    """None while the directory is missing: a role makes it when it opens its store."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return None
    used_blocks = found.f_blocks - found.f_bfree
    return DiskUsage(found.f_bavail * found.f_frsize, (used_blocks + found.f_bavail) * found.f_frsize)


class ProcessSource:
    """See the module's text."""

    def __init__(self) -> None:
        self.loop_lag = Distribution(LAG_BOUNDS_S)
        self.nodes: list[MeasuredHealth] = []
        self.networks: list[CallStatistics] = []
        self.read_failures = 0
        self.memory: MemoryReturn | None = None
        self.data_directory: Path | None = None
        self.role_tls: ExchangeTls | None = None
        self._disk: DiskUsage | None = None

    async def prepare(self) -> None:
        """Asks the file system in a thread: one over a network may not answer for long."""
        directory = self.data_directory
        self._disk = None if directory is None else await asyncio.to_thread(_disk_usage, directory)

    def read(self, readings: Readings) -> None:
        readings.add(BUILD_INFO, 1, _version(), platform.python_version())
        readings.add(LOOP_LAG, self.loop_lag)
        readings.add(READ_FAILURES, self.read_failures)
        for node in self.nodes:
            problems = node.problems()
            readings.add(HEALTHY, float(not problems), node.role, str(node.node_id))
            readings.add(PROBLEMS, len(problems), node.role, str(node.node_id))
        if self.networks:
            readings.add(UNREAD_ANSWERS, sum(network.unread_answer_bytes for network in self.networks))
        if self.memory is not None:
            _read_memory(readings, self.memory)
        if self._disk is not None:
            directory = str(self.data_directory)
            readings.add(DATA_FREE, self._disk.free_bytes, directory)
            readings.add(DATA_SIZE, self._disk.size_bytes, directory)
        if self.role_tls is not None:
            readings.add(ROLE_CERTIFICATE_EXPIRY, self.role_tls.expires_at_s())
        for network in self.networks:
            _read_client(readings, network.made.items())
            _read_server(readings, network.served.items())


def _read_memory(readings: Readings, memory: MemoryReturn) -> None:
    readings.add(MEMORY_BUDGET, memory.budget_bytes)
    readings.add(MEMORY_RESIDENT, resident_bytes())
    readings.add(TIMES_QUIET, memory.times_quiet)
    readings.add(TIMES_OVER_BUDGET, memory.times_over_budget)
    used: Counter[str] = Counter()
    limits: Counter[str] = Counter()
    for cache in memory.held.caches:
        used[cache.name] += cache.used_bytes()
        limits[cache.name] += cache.limit_bytes
    for name in used:
        readings.add(CACHE_USED, used[name], name)
        readings.add(CACHE_LIMIT, limits[name], name)


def _read_client(readings: Readings, methods: Iterable[tuple[str, MethodStatistics]]) -> None:
    for path, one in methods:
        service, _, method = path.partition("/")
        readings.add(CLIENT_DURATION, one.durations, service, method)
        readings.add(CLIENT_UNDER_WAY, one.under_way, service, method)
        for kind, count in one.failures.items():
            readings.add(CLIENT_FAILURES, count, service, method, kind)


def _read_server(readings: Readings, methods: Iterable[tuple[str, MethodStatistics]]) -> None:
    for path, one in methods:
        service, _, method = path.partition("/")
        readings.add(SERVER_DURATION, one.durations, service, method)
        readings.add(SERVER_UNDER_WAY, one.under_way, service, method)
        for kind, count in one.failures.items():
            readings.add(SERVER_FAILURES, count, service, method, kind)


def _version() -> str:
    try:
        return version("kshare-servicekit")
    except PackageNotFoundError:  # run from a tree that was not installed
        return "unknown"
