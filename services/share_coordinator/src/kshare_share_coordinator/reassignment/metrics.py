"""Metrics of reassignments; "in" are those to this node, "out" those away from it."""

from __future__ import annotations

from collections.abc import Callable

from kshare_core.distribution import Distribution
from kshare_servicekit.metric_families import Readings, counter, gauge, histogram

IN, OUT = "in", "out"
STARTED, COMPLETED, TAKEN_BACK = "started", "completed", "taken_back"
MOVE_BOUNDS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)

OWNED = gauge(
    "share_coordinator_state_partitions", "State partitions owned by this node in the catalog, including moving ones."
)
MOVES = counter(
    "share_coordinator_state_partition_moves",
    "Moves of state partitions by direction (in, out) and step (started, completed, taken_back).",
    "direction",
    "step",
)
MOVE_SECONDS = histogram(
    "share_coordinator_state_partition_move_seconds",
    "Time from a move's first appearance in this node's catalog to its switch, in seconds.",
    "direction",
)
MOVE_BYTES = counter(
    "share_coordinator_state_partition_move_bytes",
    "Bytes of keys and values copied to this node (in) or from it (out).",
    "direction",
)
FAMILIES = (OWNED, MOVES, MOVE_SECONDS, MOVE_BYTES)


class MoveMetrics:
    """Counts from the node's start; a Source."""

    def __init__(self, owned: Callable[[], int]) -> None:
        self._owned = owned
        directions = (IN, OUT)
        self._moves = {(way, step): 0 for way in directions for step in (STARTED, COMPLETED, TAKEN_BACK)}
        self._seconds = {way: Distribution(MOVE_BOUNDS_S) for way in directions}
        self._bytes = dict.fromkeys(directions, 0)

    def read(self, readings: Readings) -> None:
        """Adds the counts to a scrape."""
        readings.add(OWNED, self._owned())
        for (way, step), count in self._moves.items():
            readings.add(MOVES, count, way, step)
        for way, seconds in self._seconds.items():
            readings.add(MOVE_SECONDS, seconds, way)
            readings.add(MOVE_BYTES, self._bytes[way], way)

    def value(self, name: str, **labels: str) -> float:
        """One sample by its name without `kshare_share_coordinator_`, for tests."""
        readings = Readings()
        self.read(readings)
        return readings.value(f"share_coordinator_{name}", **labels)

    def started(self, direction: str) -> None:
        self._moves[direction, STARTED] += 1

    def completed(self, direction: str, seconds: float) -> None:
        self._moves[direction, COMPLETED] += 1
        self._seconds[direction].observe(seconds)

    def taken_back(self, direction: str) -> None:
        self._moves[direction, TAKEN_BACK] += 1

    def received(self, byte_count: int) -> None:
        self._bytes[IN] += byte_count

    def sent(self, byte_count: int) -> None:
        self._bytes[OUT] += byte_count
