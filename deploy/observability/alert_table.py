"""The alerts, as a table: `alerts.py` writes the rules of the chart and of compose from it.

An expression has placeholders. `${scope}` is the first matcher of every selector: the chart puts the release's own
namespace and release there. `${groups}` leaves out the groups in `exceptGroups`. Every other placeholder is a threshold
of the alert, named by its unit. `${component}` and `${expected}` make one rule for each role, in the chart only: no one
else knows how many pods there should be. Windows such as `[10m]` are fixed, because a summary names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

CRITICAL, WARNING = "critical", "warning"
OWN = "namespace, release"
"""The labels that every aggregation keeps."""
SEEN_WITHIN = "1d"
"""A series that had samples so long ago is not new."""


class Alert(NamedTuple):
    """One alert. `thresholds` are by placeholder; `waits_for` is the rule's `for`, "0s" for at once."""

    name: str
    severity: str
    waits_for: str
    summary: str
    expression: str
    thresholds: Mapping[str, float] = {}
    excepts_groups: bool = False

    @property
    def is_of_a_role(self) -> bool:
        """Whether the chart makes one rule of it for each role."""
        return "${component}" in self.expression


def _increase(metric: str, by: str, window: str, matchers: str = "") -> str:
    return f"sum by ({OWN}, {by}) (increase({metric}{{${{scope}}{matchers}}}[{window}]))"


def _count(metric: str, by: str, window: str, matchers: str = "") -> str:
    """`_increase` for a counter of rare events, whose series may begin with the first of them: `increase` is 0 then.

    All of a series counts that is younger than the window. One that merely had no sample when the window began counts
    from what it was before: after a failed scrape, or once it is no longer among `(others)`.
    """
    series = f"{metric}{{${{scope}}{matchers}}}"
    absent = f"({series} unless {series} offset {window})"
    before = f"last_over_time({series}[{SEEN_WITHIN}:5m] offset {window})"
    parts = f"{absent} - ({before} <= {series})\n  or {absent}\n  or increase({series}[{window}])"
    return f"sum by ({OWN}, {by}) (\n  {parts}\n)"


def _p99(metric: str, by: str) -> str:
    return f"histogram_quantile(0.99, sum by (le, {OWN}, {by}) (rate({metric}_bucket{{${{scope}}}}[5m])))"


LAG = f"sum by ({OWN}, group, topic) (kshare_leader_share_lag_records{{${{scope}}${{groups}}}})"
ACKNOWLEDGED = "kshare_leader_share_acknowledged_records_total"

GROUPS = (
    Alert(
        "KshareGroupLagGrows",
        WARNING,
        "15m",
        "{{ $labels.group }} falls behind on {{ $labels.topic }}: lag is {{ $value }} records and grows",
        f"{LAG} > ${{records}}\n  and deriv({LAG}[15m:1m]) > 0",
        {"records": 1000},
        excepts_groups=True,
    ),
    Alert(
        "KshareGroupStandsStill",
        CRITICAL,
        "10m",
        "{{ $labels.group }} accepts no records; its lag is {{ $value }} records",
        f"sum by ({OWN}, group) (kshare_leader_share_lag_records{{${{scope}}${{groups}}}}) > ${{records}}\n"
        f'  and sum by ({OWN}, group) (rate({ACKNOWLEDGED}{{${{scope}},type=~"accept|renew"}}[10m])) == 0',
        {"records": 0},
        excepts_groups=True,
    ),
    Alert(
        "KshareRecordsStuckInFlight",
        WARNING,
        "5m",
        "A member of {{ $labels.group }} has held the lock of a record of {{ $labels.topic }} for"
        " {{ $value | humanizeDuration }}",
        f"max by ({OWN}, group, topic) (kshare_leader_share_oldest_acquired_age_seconds{{${{scope}}}}) > ${{seconds}}",
        {"seconds": 300},
    ),
    Alert(
        "KshareLocksOnlyRenewed",
        WARNING,
        "15m",
        "Members of {{ $labels.group }} renew their locks on {{ $labels.topic }}, and have accepted nothing"
        " for 15 minutes",
        _increase(ACKNOWLEDGED, "group, topic", "15m", ',type="renew"')
        + " > 0\n  and "
        + _increase(ACKNOWLEDGED, "group, topic", "15m", ',type="accept"')
        + " == 0",
    ),
    Alert(
        "KsharePoisonMessages",
        WARNING,
        "0s",
        "{{ $value | humanize }} records of {{ $labels.topic }} reached the delivery count limit in {{ $labels.group }}"
        " and were archived",
        _count("kshare_leader_share_archived_records_total", "group, topic", "10m", ',reason="delivery_limit"')
        + " > ${records}",
        {"records": 0},
    ),
    Alert(
        "KshareDeadLettersGrow",
        WARNING,
        "0s",
        "{{ $value | humanize }} dead letters of {{ $labels.group }} from {{ $labels.topic }} in 15 minutes",
        _increase("kshare_leader_share_dead_letters_total", "group, topic", "15m") + " > ${records}",
        {"records": 10},
    ),
    Alert(
        "KshareDeadLettersGivenUp",
        CRITICAL,
        "0s",
        "{{ $value | humanize }} records of {{ $labels.group }} were archived without a dead letter because its configs"
        " forbid one",
        _count("kshare_leader_share_dead_letters_given_up_total", "group, topic", "15m") + " > ${records}",
        {"records": 0},
    ),
    Alert(
        "KshareAcknowledgementsSlow",
        WARNING,
        "10m",
        "Acknowledgements of {{ $labels.group }} take {{ $value | humanizeDuration }} (p99)",
        _p99("kshare_leader_share_acknowledge_duration_seconds", "group") + " > ${seconds}",
        {"seconds": 0.5},
    ),
    Alert(
        "KshareSharePartitionsDoNotLoad",
        CRITICAL,
        "5m",
        "{{ $labels.instance }} waits for the state of {{ $value }} share-partitions; their groups are stalled",
        "min_over_time(kshare_leader_share_partitions_loading{${scope}}[2m]) > 0",
    ),
    Alert(
        "KshareDeliveryHistoryDropped",
        WARNING,
        "0s",
        "{{ $labels.instance }} dropped {{ $value | humanize }} events of the delivery history in 10 minutes",
        _increase("kshare_leader_delivery_history_events_total", "instance", "10m", ',outcome="dropped"')
        + " > ${events}",
        {"events": 0},
    ),
)

STATE = (
    Alert(
        "KshareStateWritesSlow",
        WARNING,
        "10m",
        "State writes of {{ $labels.instance }} take {{ $value | humanizeDuration }} (p99)",
        _p99("kshare_share_coordinator_state_append_duration_seconds", "instance") + " > ${seconds}",
        {"seconds": 0.1},
    ),
    Alert(
        "KshareLogWritesSlow",
        WARNING,
        "10m",
        "Log writes of {{ $labels.instance }} take {{ $value | humanizeDuration }} (p99)",
        _p99("kshare_leader_log_write_duration_seconds", "instance") + " > ${seconds}",
        {"seconds": 0.25},
    ),
    Alert(
        "KshareWritesFail",
        CRITICAL,
        "0s",
        "{{ $labels.instance }} cannot write: {{ $value | humanize }} failures in 5 minutes",
        "\n  or ".join(
            f"increase({metric}{{${{scope}}}}[5m]) > 0"
            for metric in (
                "kshare_share_coordinator_state_append_failures_total",
                "kshare_leader_log_write_failures_total",
                "kshare_coordinator_append_failures_total",
            )
        ),
    ),
    Alert(
        "KshareDiskNearlyFull",
        CRITICAL,
        "5m",
        "{{ $value | humanizePercentage }} of the disk of {{ $labels.instance }} ({{ $labels.directory }}) is free",
        "kshare_data_directory_free_bytes{${scope}} / kshare_data_directory_size_bytes{${scope}} < ${ratio}",
        {"ratio": 0.1},
    ),
    Alert(
        "KshareDiskFills",
        WARNING,
        "1h",
        "The disk of {{ $labels.instance }} ({{ $labels.directory }}) will be full soon;"
        " {{ $value | humanizePercentage }} of it is free",
        "kshare_data_directory_free_bytes{${scope}} / kshare_data_directory_size_bytes{${scope}} < ${ratio}\n"
        "  and predict_linear(kshare_data_directory_free_bytes{${scope}}[6h], ${hours} * 3600) < 0",
        {"ratio": 0.4, "hours": 24},
    ),
    Alert(
        "KshareStoreErrors",
        WARNING,
        "5m",
        "RocksDB of {{ $labels.instance }} has failed {{ $value }} flushes or compactions",
        "\n  or ".join(
            f"kshare_{role}_rocksdb_background_errors{{${{scope}}}} > 0"
            for role in ("leader", "share_coordinator", "coordinator")
        ),
    ),
    Alert(
        "KshareStateDamaged",
        CRITICAL,
        "0s",
        "Stored state at {{ $labels.instance }} is damaged and not served",
        "kshare_share_coordinator_damaged_families{${scope}} > 0\n"
        "  or kshare_share_coordinator_corrupt_share_partitions{${scope}} > 0",
    ),
    Alert(
        "KshareStateTruncated",
        CRITICAL,
        "0s",
        "The log of {{ $labels.topic }} has lost records that {{ $labels.group }} knew of: the state of"
        " {{ $value | humanize }} offsets was dropped",
        _count("kshare_leader_share_truncated_offsets_total", "group, topic", "15m") + " > 0",
    ),
    Alert(
        "KsharePartitionOffline",
        CRITICAL,
        "1m",
        "{{ $labels.instance }} cannot open the logs of {{ $value }} partitions",
        f"max by ({OWN}, instance) (kshare_leader_offline_partitions{{${{scope}}}}) > 0",
    ),
    Alert(
        "KshareStatePartitionWithoutOwner",
        CRITICAL,
        "1m",
        "{{ $value }} state partitions have no live share coordinator; their groups are stalled",
        f"max by ({OWN}) (kshare_coordinator_state_partitions_without_owner{{${{scope}}}}) > 0",
    ),
    Alert(
        "KsharePartitionWithoutLeader",
        CRITICAL,
        "1m",
        "{{ $value }} topic partitions have no live leader",
        f"max by ({OWN}) (kshare_coordinator_partitions_without_leader{{${{scope}}}}) > 0",
    ),
    Alert(
        "KshareMoveTakesLong",
        WARNING,
        "1h",
        "{{ $value }} partitions have been moving to another node for a long time",
        f"max by ({OWN}) (kshare_coordinator_moving_partitions{{${{scope}}}}) > 0\n"
        f"  or max by ({OWN}) (kshare_coordinator_moving_state_partitions{{${{scope}}}}) > 0",
    ),
    Alert(
        "KshareCatalogNearlyFull",
        WARNING,
        "10m",
        "The catalog has {{ $value | humanizePercentage }} of the bytes that it may have",
        f"max by ({OWN}) (kshare_coordinator_catalog_bytes{{${{scope}}}}"
        " / kshare_coordinator_catalog_bytes_limit{${scope}}) > ${ratio}",
        {"ratio": 0.8},
    ),
)

PROCESSES = (
    Alert(
        "KshareTargetDown",
        WARNING,
        "10m",
        "Prometheus cannot scrape {{ $labels.instance }}",
        "up{${scope}} == 0",
    ),
    Alert(
        "KshareFewerThanExpected",
        WARNING,
        "15m",
        "{{ $value }} of ${expected} pods of the role ${component} answer",
        '(count(up{${scope},component="${component}"} == 1) or vector(0)) < ${expected}',
    ),
    Alert(
        "KshareRoleDown",
        CRITICAL,
        "2m",
        "No pod of the role ${component} answers",
        '(count(up{${scope},component="${component}"} == 1) or vector(0)) == 0',
    ),
    Alert(
        "KshareNodeNotHealthy",
        CRITICAL,
        "1m",
        "{{ $labels.role }} {{ $labels.node_id }} is not healthy; its log has the reason",
        f"min by ({OWN}, role, node_id, instance) (kshare_node_healthy{{${{scope}}}}) == 0",
    ),
    Alert(
        "KshareRestartsOften",
        WARNING,
        "0s",
        "{{ $labels.instance }} was restarted {{ $value }} times in 30 minutes",
        "changes(process_start_time_seconds{${scope}}[30m]) > ${restarts}",
        {"restarts": 2},
    ),
    Alert(
        "KshareNoActiveCoordinator",
        CRITICAL,
        "1m",
        "The number of active coordinators is not 1",
        f"sum by ({OWN}) (kshare_coordinator_active{{${{scope}}}}) != 1\n"
        "  or absent(kshare_coordinator_active{${scope}})",
    ),
    Alert(
        "KshareEventLoopLag",
        WARNING,
        "5m",
        "The event loop of {{ $labels.instance }} is late by {{ $value | humanizeDuration }} (p99)",
        _p99("kshare_event_loop_lag_seconds", "instance") + " > ${seconds}",
        {"seconds": 0.25},
    ),
    Alert(
        "KshareCallsFail",
        WARNING,
        "5m",
        "{{ $labels.instance }}: {{ $value | humanize }} calls of {{ $labels.service }}/{{ $labels.method }} fail"
        " each second",
        f"sum by ({OWN}, instance, service, method) (rate(kshare_rpc_client_call_failures_total{{${{scope}}}}[5m]))"
        " > ${callsPerSecond}",
        {"callsPerSecond": 1},
    ),
    Alert(
        "KshareHandlerFails",
        WARNING,
        "0s",
        "{{ $labels.instance }} failed in {{ $value | humanize }} calls of {{ $labels.service }}/{{ $labels.method }},"
        " which is a bug",
        _count("kshare_rpc_server_call_failures_total", "instance, service, method", "10m", ',kind="handler"')
        + " > ${calls}",
        {"calls": 0},
    ),
    Alert(
        "KshareMetricsReadFails",
        WARNING,
        "0s",
        "{{ $labels.instance }} left metrics out of {{ $value | humanize }} scrapes, which is a bug",
        _increase("kshare_metrics_read_failures_total", "instance", "10m") + " > 0",
    ),
    Alert(
        "KshareOverMemoryBudget",
        WARNING,
        "10m",
        "{{ $labels.instance }} has more resident memory than its budget",
        "increase(kshare_memory_over_budget_total{${scope}}[10m]) > ${checks}",
        {"checks": 60},
    ),
    Alert(
        "KshareRoleCertificateExpires",
        WARNING,
        "10m",
        "The certificate of {{ $labels.instance }} for other roles expires in {{ $value | humanizeDuration }}",
        f"min by ({OWN}, instance) (kshare_role_certificate_expiry_timestamp_seconds{{${{scope}}}})"
        " - time() < ${days} * 86400",
        {"days": 14},
    ),
)

CLIENTS = (
    Alert(
        "KshareCertificateExpires",
        WARNING,
        "10m",
        "The certificate of listener {{ $labels.listener }} of {{ $labels.instance }} expires in"
        " {{ $value | humanizeDuration }}",
        f"min by ({OWN}, instance, listener) (kshare_gateway_certificate_expiry_timestamp_seconds{{${{scope}}}})"
        " - time() < ${days} * 86400",
        {"days": 14},
    ),
    Alert(
        "KshareConnectionsRefused",
        WARNING,
        "10m",
        "{{ $labels.instance }} refused {{ $value | humanize }} connections in 10 minutes",
        _increase("kshare_gateway_connections_refused_total", "instance", "10m") + " > ${connections}",
        {"connections": 10},
    ),
    Alert(
        "KshareGatewayMemoryFull",
        WARNING,
        "10m",
        "Requests and responses use {{ $value | humanizePercentage }} of the bytes that"
        " {{ $labels.instance }} may hold",
        "kshare_gateway_queued_bytes{${scope}} / kshare_gateway_queued_limit_bytes{${scope}} > ${ratio}",
        {"ratio": 0.9},
    ),
)

PIPELINE = (
    Alert(
        "KsharePipelineStalled",
        WARNING,
        "15m",
        "The pipeline {{ $labels.instance }} does not read the delivery history",
        f"time() - max by ({OWN}, instance) (kshare_pipeline_last_success_timestamp_seconds{{${{scope}}}})"
        " > ${seconds}",
        {"seconds": 900},
    ),
    Alert(
        "KsharePipelineMartsStale",
        WARNING,
        "15m",
        "The marts of the pipeline {{ $labels.instance }} are out of date",
        f"time() - max by ({OWN}, instance) (kshare_pipeline_marts_last_success_timestamp_seconds{{${{scope}}}})"
        " > ${seconds}",
        {"seconds": 3600},
    ),
    Alert(
        "KsharePipelineQuarantines",
        WARNING,
        "0s",
        "The pipeline {{ $labels.instance }} put {{ $value | humanize }} records into quarantine in an hour",
        _count("kshare_pipeline_quarantined_records_total", "instance", "1h") + " > ${records}",
        {"records": 0},
    ),
)

RULE_GROUPS: Mapping[str, tuple[Alert, ...]] = {
    "kshare-groups": GROUPS,
    "kshare-state": STATE,
    "kshare-processes": PROCESSES,
    "kshare-clients": CLIENTS,
    "kshare-pipeline": PIPELINE,
}
ALERTS: tuple[Alert, ...] = tuple(alert for alerts in RULE_GROUPS.values() for alert in alerts)
