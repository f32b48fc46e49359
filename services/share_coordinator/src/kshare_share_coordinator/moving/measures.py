"""What is counted about moves, for Prometheus; "in" are moves to this node, "out" those away from it."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kshare_servicekit.metrics import NAMESPACE, Metrics

IN, OUT = "in", "out"
MOVE_BUCKETS_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class MoveMeasures:
    """Counts from the node's start; `add_to` shows them among a process's metrics."""

    def __init__(self, owned: Callable[[], int]) -> None:
        self._registry = registry = CollectorRegistry()
        gauge = Gauge(
            "share_coordinator_state_partitions",
            "State partitions that the catalog says this node owns.",
            namespace=NAMESPACE,
            registry=registry,
        )
        gauge.set_function(owned)
        self._moves = Counter(
            "share_coordinator_state_partition_moves",
            "Moves of state partitions by direction (in, out) and step (started, completed, taken_back).",
            ("direction", "step"),
            namespace=NAMESPACE,
            registry=registry,
        )
        self._seconds = Histogram(
            "share_coordinator_state_partition_move_seconds",
            "From when this node saw a move until it saw the switch.",
            ("direction",),
            namespace=NAMESPACE,
            registry=registry,
            buckets=MOVE_BUCKETS_SECONDS,
        )
        self._bytes = Counter(
            "share_coordinator_state_partition_move_bytes",
            "Keys and values that were copied to this node or given out by it.",
            ("direction",),
            namespace=NAMESPACE,
            registry=registry,
        )
        for direction in (IN, OUT):
            self._seconds.labels(direction)
            self._bytes.labels(direction)
            for step in ("started", "completed", "taken_back"):
                self._moves.labels(direction, step)

    def add_to(self, metrics: Metrics) -> None:
        metrics.registry.register(self._registry)

    def started(self, direction: str) -> None:
        self._moves.labels(direction, "started").inc()

    def completed(self, direction: str, seconds: float) -> None:
        self._moves.labels(direction, "completed").inc()
        self._seconds.labels(direction).observe(seconds)

    def taken_back(self, direction: str) -> None:
        self._moves.labels(direction, "taken_back").inc()

    def received(self, byte_count: int) -> None:
        self._bytes.labels(IN).inc(byte_count)

    def sent(self, byte_count: int) -> None:
        self._bytes.labels(OUT).inc(byte_count)

    def value(self, name: str, **labels: str) -> float:
        """One sample by its name without the prefix, for tests."""
        found = self._registry.get_sample_value(f"{NAMESPACE}_share_coordinator_{name}", labels)
        assert found is not None, f"there is no metric {name} with {labels}"
        return found
