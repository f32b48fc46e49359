"""Writes the Grafana dashboards of helm/kshare/files/dashboards: `python deploy/observability/dashboards.py`.

A dashboard is rows of panels, a panel is a title, a unit and queries. tests/deploy/test_observability.py compares the
files with what this writes, and asks a real Prometheus every query.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parents[2] / "helm/kshare/files/dashboards"
WIDTH, HEIGHT = 8, 7
COLUMNS = 24
GROUP, TOPIC = 'group=~"$group"', 'topic=~"$topic"'


class Panel(NamedTuple):
    """`queries` are pairs of PromQL and the legend of its series."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    description: str = ""


class Variable(NamedTuple):
    """A choice at the top of a dashboard: the values of a label of a metric."""

    name: str
    metric: str


class Dashboard(NamedTuple):
    title: str
    variables: tuple[Variable, ...]
    panels: tuple[Panel, ...]


def quantiles(metric: str, by: str, selection: str = "") -> tuple[tuple[str, str], ...]:
    """The median and the 99th percentile of a histogram, by one more label."""
    found = []
    for share, name in (("0.5", "p50"), ("0.99", "p99")):
        inner = f"sum by (le, {by}) (rate({metric}_bucket{{{selection}}}[$__rate_interval]))"
        found.append((f"histogram_quantile({share}, {inner})", f"{{{{{by}}}}} {name}"))
    return tuple(found)


def rate(metric: str, by: str, selection: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{selection}}}[$__rate_interval]))"


OVERVIEW = Dashboard(
    "kshare overview",
    (),
    (
        Panel("Healthy nodes", "none", (("sum by (role) (kshare_node_healthy)", "{{role}}"),)),
        Panel(
            "Without leader or owner",
            "none",
            (
                ("max(kshare_coordinator_partitions_without_leader)", "topic partitions"),
                ("max(kshare_coordinator_state_partitions_without_owner)", "state partitions"),
            ),
            "Above zero, some partitions are not served.",
        ),
        Panel("Active coordinators", "none", (("sum(kshare_coordinator_active)", "active"),), "Must be 1."),
        Panel("Lag by group", "short", (("sum by (group) (kshare_leader_share_lag_records)", "{{group}}"),)),
        Panel(
            "Accepted by group",
            "rps",
            ((rate("kshare_leader_share_acknowledged_records_total", "group", 'type="accept"'), "{{group}}"),),
        ),
        Panel(
            "Archived by group",
            "rps",
            ((rate("kshare_leader_share_archived_records_total", "group, reason"), "{{group}} {{reason}}"),),
        ),
        Panel("Records in", "rps", ((rate("kshare_leader_topic_records_in_total", "topic"), "{{topic}}"),)),
        Panel(
            "Bytes in and out",
            "Bps",
            (
                (rate("kshare_leader_topic_bytes_in_total", "topic"), "{{topic}} in"),
                (rate("kshare_leader_topic_bytes_out_total", "topic"), "{{topic}} out"),
            ),
        ),
        Panel(
            "Groups",
            "none",
            (("sum by (type, state) (kshare_coordinator_groups)", "{{type}} {{state}}"),),
        ),
        Panel("Event loop lag", "s", quantiles("kshare_event_loop_lag_seconds", "instance")),
        Panel("CPU", "percentunit", ((rate("process_cpu_seconds_total", "instance"), "{{instance}}"),)),
        Panel("Memory", "bytes", (("sum by (instance) (process_resident_memory_bytes)", "{{instance}}"),)),
    ),
)

GROUP_DASHBOARD = Dashboard(
    "kshare group",
    (Variable("group", "kshare_leader_share_lag_records"), Variable("topic", "kshare_leader_share_lag_records")),
    (
        Panel(
            "Lag by partition",
            "short",
            (
                (
                    f"sum by (topic, partition) (kshare_leader_share_lag_records{{{GROUP},{TOPIC}}})",
                    "{{topic}}-{{partition}}",
                ),
            ),
        ),
        Panel(
            "In flight",
            "short",
            ((f"sum by (state) (kshare_leader_share_in_flight_records{{{GROUP},{TOPIC}}})", "{{state}}"),),
            "Acquired: locked by a member. Available: released, to be delivered again. Archiving: dead letter pending.",
        ),
        Panel(
            "Oldest acquisition lock",
            "s",
            (
                (
                    f"max by (topic, partition) (kshare_leader_share_oldest_acquired_age_seconds{{{GROUP},{TOPIC}}})",
                    "{{topic}}-{{partition}}",
                ),
            ),
            "A long-held lock points to a member that hangs or keeps renewing.",
        ),
        Panel(
            "Deliveries and outcomes",
            "rps",
            (
                (rate("kshare_leader_share_acquired_records_total", "group", f"{GROUP},{TOPIC}"), "delivered"),
                (
                    rate("kshare_leader_share_acknowledged_records_total", "type", f"{GROUP},{TOPIC}"),
                    "{{type}}",
                ),
                (rate("kshare_leader_share_expired_locks_records_total", "group", f"{GROUP},{TOPIC}"), "lock expired"),
                (
                    rate("kshare_leader_share_session_released_records_total", "group", f"{GROUP},{TOPIC}"),
                    "session ended",
                ),
            ),
        ),
        Panel(
            "Poison messages",
            "rps",
            (
                (rate("kshare_leader_share_archived_records_total", "reason", f"{GROUP},{TOPIC}"), "{{reason}}"),
                (rate("kshare_leader_share_dead_letters_total", "group", f"{GROUP},{TOPIC}"), "dead letters"),
            ),
        ),
        Panel(
            "Delivery counts",
            "percentunit",
            (
                (
                    f"1 - sum(rate(kshare_leader_share_delivery_count_bucket{{{GROUP},{TOPIC},"
                    'le="1.0"}[$__rate_interval]))'
                    f" / sum(rate(kshare_leader_share_delivery_count_count{{{GROUP},{TOPIC}}}[$__rate_interval]))",
                    "redelivered",
                ),
            ),
            "Fraction of deliveries that are redeliveries.",
        ),
        Panel(
            "From append to acceptance",
            "s",
            quantiles("kshare_leader_share_append_to_accept_seconds", "topic", f"{GROUP},{TOPIC}"),
        ),
        Panel("Acknowledgement", "s", quantiles("kshare_leader_share_acknowledge_duration_seconds", "group", GROUP)),
        Panel(
            "ShareFetch at the leader", "s", quantiles("kshare_leader_share_fetch_duration_seconds", "waited", GROUP)
        ),
    ),
)

SHARE_COORDINATORS = Dashboard(
    "kshare share coordinators",
    (),
    (
        Panel(
            "State partitions",
            "none",
            (("sum by (instance) (kshare_share_coordinator_state_partitions)", "{{instance}}"),),
        ),
        Panel(
            "Moves",
            "short",
            (
                (
                    rate("kshare_share_coordinator_state_partition_moves_total", "direction, step"),
                    "{{direction}} {{step}}",
                ),
            ),
        ),
        Panel(
            "Damaged",
            "none",
            (
                ("sum by (instance) (kshare_share_coordinator_damaged_families)", "{{instance}} families"),
                (
                    "sum by (instance) (kshare_share_coordinator_corrupt_share_partitions)",
                    "{{instance}} share-partitions",
                ),
            ),
        ),
        Panel(
            "Operations",
            "ops",
            (
                (
                    rate("kshare_share_coordinator_operations_total", "operation, error"),
                    "{{operation}} {{error}}",
                ),
            ),
        ),
        Panel(
            "Durable writes",
            "s",
            quantiles("kshare_share_coordinator_state_append_duration_seconds", "instance"),
            "Including fsync; every acknowledgement waits for one.",
        ),
        Panel(
            "Records per durable write",
            "short",
            quantiles("kshare_share_coordinator_state_append_records", "instance"),
        ),
        Panel(
            "Bytes written",
            "Bps",
            ((rate("kshare_share_coordinator_state_append_bytes_total", "instance"), "{{instance}}"),),
        ),
        Panel(
            "Snapshots and updates",
            "ops",
            ((rate("kshare_share_coordinator_state_records_total", "kind"), "{{kind}}"),),
        ),
        Panel(
            "RocksDB",
            "bytes",
            (
                ("sum by (instance) (kshare_share_coordinator_rocksdb_table_bytes)", "{{instance}} tables"),
                ("sum by (instance) (kshare_share_coordinator_rocksdb_memtable_bytes)", "{{instance}} memtables"),
            ),
        ),
    ),
)

GATEWAYS = Dashboard(
    "kshare gateways",
    (),
    (
        Panel("Connections", "none", (("sum by (instance) (kshare_gateway_connections)", "{{instance}}"),)),
        Panel("Share sessions", "none", (("sum by (instance) (kshare_gateway_share_sessions)", "{{instance}}"),)),
        Panel(
            "Requests in flight", "none", (("sum by (instance) (kshare_gateway_requests_under_way)", "{{instance}}"),)
        ),
        Panel("Requests", "reqps", ((rate("kshare_gateway_request_duration_seconds_count", "api"), "{{api}}"),)),
        Panel("Duration", "s", quantiles("kshare_gateway_request_duration_seconds", "api")),
        Panel("Errors", "ops", ((rate("kshare_gateway_errors_total", "api, error"), "{{api}} {{error}}"),)),
        Panel(
            "Bytes",
            "Bps",
            (
                (rate("kshare_gateway_received_bytes_total", "instance"), "{{instance}} received"),
                (rate("kshare_gateway_sent_bytes_total", "instance"), "{{instance}} sent"),
            ),
        ),
        Panel(
            "Read-ahead: hits",
            "percentunit",
            (
                (
                    "sum(rate(kshare_gateway_cache_hit_bytes_total[$__rate_interval])) / "
                    "(sum(rate(kshare_gateway_cache_hit_bytes_total[$__rate_interval])) + "
                    "sum(rate(kshare_gateway_cache_miss_bytes_total[$__rate_interval])))",
                    "hits",
                ),
            ),
        ),
        Panel("Read-ahead: memory", "bytes", (("sum by (instance) (kshare_gateway_cache_bytes)", "{{instance}}"),)),
    ),
)

DASHBOARDS = {
    "overview": OVERVIEW,
    "group": GROUP_DASHBOARD,
    "share-coordinators": SHARE_COORDINATORS,
    "gateways": GATEWAYS,
}


def rendered(name: str, dashboard: Dashboard) -> str:
    """The dashboard as Grafana imports it."""
    source = {"type": "prometheus", "uid": "${source}"}
    panels = []
    for index, panel in enumerate(dashboard.panels):
        per_row = COLUMNS // WIDTH
        panels.append(
            {
                "id": index + 1,
                "type": "timeseries",
                "title": panel.title,
                "description": panel.description,
                "datasource": source,
                "gridPos": {"x": index % per_row * WIDTH, "y": index // per_row * HEIGHT, "w": WIDTH, "h": HEIGHT},
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "targets": [
                    {"refId": chr(ord("A") + number), "expr": query, "legendFormat": legend, "datasource": source}
                    for number, (query, legend) in enumerate(panel.queries)
                ],
            }
        )
    variables: list[dict[str, Any]] = [
        {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}
    ]
    for variable in dashboard.variables:
        variables.append(
            {
                "name": variable.name,
                "label": variable.name,
                "type": "query",
                "datasource": source,
                "query": f"label_values({variable.metric}, {variable.name})",
                "refresh": 2,
                "multi": True,
                "includeAll": True,
                "allValue": ".*",
                "current": {"text": "All", "value": "$__all"},
            }
        )
    document = {
        "uid": f"kshare-{name}",
        "title": dashboard.title,
        "tags": ["kshare"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }
    return json.dumps(document, indent=2) + "\n"


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, dashboard in DASHBOARDS.items():
        (FOLDER / f"{name}.json").write_text(rendered(name, dashboard), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
