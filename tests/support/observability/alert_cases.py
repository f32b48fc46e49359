"""When each alert must ring and when not: series in promtool's notation, with one sample a minute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Series = Mapping[str, str]
ONE_PARTITION = 'group="g",topic="t",partition="0"'
ACKNOWLEDGED = "kshare_leader_share_acknowledged_records_total"
LAG = "kshare_leader_share_lag_records"


class Case(NamedTuple):
    """The alert is quiet in minute `quiet_at`, and in `rings_at` it has these labels and this summary, once.

    `healthy` are the series of another cluster in the same Prometheus; empty: it has the same trouble.
    """

    alert: str
    quiet_at: int
    rings_at: int
    labels: Mapping[str, str]
    summary: str
    series: Series
    healthy: Series = {}


def up(**pods: str) -> dict[str, str]:
    """Whether each pod answers, by its name: the role and a number."""
    names = {"coordinator": 1, "share_coordinator": 2, "leader": 2, "gateway": 2}
    found = {}
    for role, count in names.items():
        for number in range(count):
            name = f"{role}_{number}"
            labels = f'job="kshare",component="{role.replace("_", "-")}",instance="{name}"'
            found[f"up{{{labels}}}"] = pods.get(name, "1x60")
    return found


def histogram(metric: str, labels: str, below: str, bound: str, above: str) -> dict[str, str]:
    """Every observation lies above `below` and at most at `bound`: 100 a minute."""
    return {
        f'{metric}_bucket{{{labels},le="{below}"}}': "0x60",
        f'{metric}_bucket{{{labels},le="{bound}"}}': above,
        f'{metric}_bucket{{{labels},le="+Inf"}}': above,
    }


OF_GROUPS = (
    Case(
        "KshareGroupLagGrows",
        *(10, 40, {"group": "g", "topic": "t"}),
        "g falls behind on t: lag is 4000 records and grows",
        {f"{LAG}{{{ONE_PARTITION}}}": "0+100x60", f'{LAG}{{group="steady",topic="t",partition="0"}}': "5000x60"},
        {f"{LAG}{{{ONE_PARTITION}}}": "9000-100x60"},
    ),
    Case(
        "KshareGroupStandsStill",
        *(25, 40, {"group": "g"}),
        "g accepts no records; its lag is 7 records",
        {
            f"{LAG}{{{ONE_PARTITION}}}": "7x60",
            f'{ACKNOWLEDGED}{{{ONE_PARTITION},type="accept"}}': "0+5x10 50x50",
            f'{LAG}{{group="works",topic="t",partition="0"}}': "7x60",
            f'{ACKNOWLEDGED}{{group="works",topic="t",partition="0",type="accept"}}': "0+5x60",
            f'{LAG}{{group="renews",topic="t",partition="0"}}': "7x60",
            f'{ACKNOWLEDGED}{{group="renews",topic="t",partition="0",type="accept"}}': "0x60",
            f'{ACKNOWLEDGED}{{group="renews",topic="t",partition="0",type="renew"}}': "0+5x60",
        },
        {
            f"{LAG}{{{ONE_PARTITION}}}": "7x60",
            f'{ACKNOWLEDGED}{{{ONE_PARTITION},type="accept"}}': "0+5x60",
        },
    ),
    Case(
        "KshareRecordsStuckInFlight",
        *(9, 12, {"group": "g", "topic": "t"}),
        "A member of g has held the lock of a record of t for 12m 0s",
        {f"kshare_leader_share_oldest_acquired_age_seconds{{{ONE_PARTITION}}}": "0+60x20"},
    ),
    Case(
        "KshareLocksOnlyRenewed",
        *(15, 40, {"group": "g", "topic": "t"}),
        "Members of g renew their locks on t, and have accepted nothing for 15 minutes",
        {
            f'{ACKNOWLEDGED}{{{ONE_PARTITION},type="renew"}}': "0+5x60",
            f'{ACKNOWLEDGED}{{{ONE_PARTITION},type="accept"}}': "0+5x5 25x55",
            f'{ACKNOWLEDGED}{{group="h",topic="t",partition="0",type="renew"}}': "0+5x60",
            f'{ACKNOWLEDGED}{{group="h",topic="t",partition="0",type="accept"}}': "0+1x60",
        },
    ),
    Case(
        "KsharePoisonMessages",
        *(9, 15, {"group": "g", "topic": "t"}),
        "10 records of t reached the delivery count limit in g and were archived",
        {
            f'kshare_leader_share_archived_records_total{{{ONE_PARTITION},reason="delivery_limit"}}': "0x10 10x20",
            'kshare_leader_share_archived_records_total{group="h",topic="t",partition="0",reason="rejected"}': "0+1x30",
        },
    ),
    Case(
        "KshareDeadLettersGrow",
        *(9, 30, {"group": "g", "topic": "t"}),
        "30 dead letters of g from t in 15 minutes",
        {f"kshare_leader_share_dead_letters_total{{{ONE_PARTITION}}}": "0x10 0+2x20"},
    ),
    Case(
        "KshareDeadLettersGivenUp",
        *(9, 16, {"group": "g", "topic": "t"}),
        "15 records of g were archived without a dead letter because its configs forbid one",
        {f"kshare_leader_share_dead_letters_given_up_total{{{ONE_PARTITION}}}": "0x10 15x20"},
    ),
    Case(
        "KshareAcknowledgementsSlow",
        *(5, 20, {"group": "g"}),
        "Acknowledgements of g take 995ms (p99)",
        histogram("kshare_leader_share_acknowledge_duration_seconds", 'group="g"', "0.5", "1", "0+100x40"),
    ),
    Case(
        "KshareSharePartitionsDoNotLoad",
        *(6, 15, {"instance": "l"}),
        "l waits for the state of 3 share-partitions; their groups are stalled",
        {
            'kshare_leader_share_partitions_loading{instance="l"}': "0x4 3x20",
            'kshare_leader_share_partitions_loading{instance="busy"}': "1 0 2 0 1 0 3 0 1 0 1 0 1 0 1 0 1 0 1",
        },
    ),
    Case(
        "KshareDeliveryHistoryDropped",
        *(9, 21, {"instance": "l"}),
        "l dropped 50 events of the delivery history in 10 minutes",
        {
            'kshare_leader_delivery_history_events_total{instance="l",outcome="dropped"}': "0x10 0+5x10 50x30",
            'kshare_leader_delivery_history_events_total{instance="l",outcome="published"}': "0+5x60",
        },
    ),
)

OF_STATE = (
    Case(
        "KshareStateWritesSlow",
        *(5, 20, {"instance": "i"}),
        "State writes of i take 298ms (p99)",
        histogram("kshare_share_coordinator_state_append_duration_seconds", 'instance="i"', "0.1", "0.3", "0+100x40"),
    ),
    Case(
        "KshareLogWritesSlow",
        *(5, 20, {"instance": "l"}),
        "Log writes of l take 497.5ms (p99)",
        histogram("kshare_leader_log_write_duration_seconds", 'instance="l"', "0.25", "0.5", "0+100x40"),
    ),
    Case(
        "KshareWritesFail",
        *(4, 8, {"instance": "i"}),
        "i cannot write: 5 failures in 5 minutes",
        {
            'kshare_share_coordinator_state_append_failures_total{instance="i"}': "0x5 5x10",
            'kshare_leader_log_write_failures_total{instance="l"}': "0x15",
        },
    ),
    Case(
        "KshareDiskNearlyFull",
        *(12, 20, {"instance": "l", "directory": "/data"}),
        "8% of the disk of l (/data) is free",
        {
            'kshare_data_directory_free_bytes{instance="l",directory="/data"}': "20x10 8x20",
            'kshare_data_directory_size_bytes{instance="l",directory="/data"}': "100x30",
        },
    ),
    Case(
        "KshareDiskFills",
        *(50, 70, {"instance": "l", "directory": "/data"}),
        "The disk of l (/data) will be full soon; 24% of it is free",
        {
            'kshare_data_directory_free_bytes{instance="l",directory="/data"}': "38-0.2x90",
            'kshare_data_directory_size_bytes{instance="l",directory="/data"}': "100x90",
            'kshare_data_directory_free_bytes{instance="steady",directory="/data"}': "30x90",
            'kshare_data_directory_size_bytes{instance="steady",directory="/data"}': "100x90",
        },
    ),
    Case(
        "KshareStoreErrors",
        *(8, 20, {"instance": "c"}),
        "RocksDB of c has failed 2 flushes or compactions",
        {
            'kshare_coordinator_rocksdb_background_errors{instance="c"}': "0x5 2x20",
            'kshare_leader_rocksdb_background_errors{instance="l"}': "0x30",
        },
    ),
    Case(
        "KshareStateDamaged",
        *(4, 8, {"instance": "i"}),
        "Stored state at i is damaged and not served",
        {
            'kshare_share_coordinator_damaged_families{instance="i"}': "0x5 1x10",
            'kshare_share_coordinator_corrupt_share_partitions{instance="i"}': "0x15",
        },
    ),
    Case(
        "KshareStateTruncated",
        *(9, 16, {"group": "g", "topic": "t"}),
        "The log of t has lost records that g knew of: the state of 15 offsets was dropped",
        {f"kshare_leader_share_truncated_offsets_total{{{ONE_PARTITION}}}": "0x10 15x20"},
    ),
    Case(
        "KsharePartitionOffline",
        *(5, 8, {"instance": "l"}),
        "l cannot open the logs of 2 partitions",
        {'kshare_leader_offline_partitions{instance="l"}': "0x5 2x10"},
    ),
    Case(
        "KshareStatePartitionWithoutOwner",
        *(5, 8, {}),
        "17 state partitions have no live share coordinator; their groups are stalled",
        {'kshare_coordinator_state_partitions_without_owner{instance="c"}': "0x5 17x10"},
        {'kshare_coordinator_state_partitions_without_owner{instance="d"}': "0x15"},
    ),
    Case(
        "KsharePartitionWithoutLeader",
        *(5, 8, {}),
        "3 topic partitions have no live leader",
        {'kshare_coordinator_partitions_without_leader{instance="c"}': "0x5 3x10"},
        {'kshare_coordinator_partitions_without_leader{instance="d"}': "0x15"},
    ),
    Case(
        "KshareMoveTakesLong",
        *(50, 80, {}),
        "4 partitions have been moving to another node for a long time",
        {'kshare_coordinator_moving_state_partitions{instance="c"}': "0x5 4x90"},
        {'kshare_coordinator_moving_state_partitions{instance="d"}': "0x90"},
    ),
    Case(
        "KshareCatalogNearlyFull",
        *(9, 30, {}),
        "The catalog has 90% of the bytes that it may have",
        {
            'kshare_coordinator_catalog_bytes{instance="c"}': "50x10 90x30",
            'kshare_coordinator_catalog_bytes_limit{instance="c"}': "100x40",
        },
    ),
)

OF_PROCESSES = (
    Case(
        "KshareTargetDown",
        *(12, 20, {"job": "kshare", "component": "leader", "instance": "leader_1"}),
        "Prometheus cannot scrape leader_1",
        up(leader_1="1x5 0x30"),
        up(),
    ),
    Case(
        "KshareFewerThanExpected",
        *(15, 30, {"component": "leader"}),
        "1 of 2 pods of the role leader answer",
        up(leader_1="1x5 _x50"),
        up(),
    ),
    Case(
        "KshareRoleDown",
        *(5, 15, {"component": "gateway"}),
        "No pod of the role gateway answers",
        up(gateway_0="1x5 0x50", gateway_1="1x5 _x50"),
        up(),
    ),
    Case(
        "KshareNodeNotHealthy",
        *(5, 8, {"role": "leader", "node_id": "2", "instance": "l"}),
        "leader 2 is not healthy; its log has the reason",
        {
            'kshare_node_healthy{role="leader",node_id="2",instance="l"}': "1x5 0x10",
            'kshare_node_healthy{role="leader",node_id="1",instance="k"}': "1x15",
        },
    ),
    Case(
        "KshareRestartsOften",
        *(15, 25, {"job": "kshare", "instance": "l"}),
        "l was restarted 3 times in 30 minutes",
        {
            'process_start_time_seconds{job="kshare",instance="l"}': "1x5 2x5 3x5 4x20",
            'process_start_time_seconds{job="kshare",instance="k"}': "1x20 2x20",
        },
    ),
    Case(
        "KshareNoActiveCoordinator",
        *(5, 8, {}),
        "The number of active coordinators is not 1",
        {'kshare_coordinator_active{instance="c"}': "1x5 0x10", 'kshare_coordinator_active{instance="d"}': "0x15"},
        {'kshare_coordinator_active{instance="e"}': "1x15"},
    ),
    Case(
        "KshareEventLoopLag",
        *(4, 20, {"instance": "i"}),
        "The event loop of i is late by 497.5ms (p99)",
        histogram("kshare_event_loop_lag_seconds", 'instance="i"', "0.25", "0.5", "0+240x40"),
    ),
    Case(
        "KshareCallsFail",
        *(3, 12, {"instance": "l", "service": "ShareCoordinator", "method": "WriteShareGroupState"}),
        "l: 2 calls of ShareCoordinator/WriteShareGroupState fail each second",
        {
            'kshare_rpc_client_call_failures_total{instance="l",service="ShareCoordinator",'
            'method="WriteShareGroupState",kind="CallTimeout"}': "0+120x15"
        },
    ),
    Case(
        "KshareHandlerFails",
        *(9, 12, {"instance": "l", "service": "Leader", "method": "Fetch"}),
        "l failed in 2 calls of Leader/Fetch, which is a bug",
        {
            'kshare_rpc_server_call_failures_total{instance="l",service="Leader",method="Fetch",kind="handler"}': (
                "0x10 2x20"
            ),
            'kshare_rpc_server_call_failures_total{instance="k",service="Leader",method="Fetch",kind="stopped"}': (
                "0+5x30"
            ),
        },
    ),
    Case(
        "KshareMetricsReadFails",
        *(9, 12, {"instance": "l"}),
        "l left metrics out of 2 scrapes, which is a bug",
        {'kshare_metrics_read_failures_total{instance="l"}': "0x10 2x20"},
    ),
    Case(
        "KshareOverMemoryBudget",
        *(20, 40, {"instance": "l"}),
        "l has more resident memory than its budget",
        {
            'kshare_memory_over_budget_total{instance="l"}': "0x10 0+12x50",
            'kshare_memory_over_budget_total{instance="now and then"}': "0+2x60",
        },
    ),
    Case(
        "KshareRoleCertificateExpires",
        *(15, 40, {"instance": "soon"}),
        "The certificate of soon for other roles expires in 13d 23h 30m 0s",
        {
            'kshare_role_certificate_expiry_timestamp_seconds{instance="soon"}': "1210200x40",
            'kshare_role_certificate_expiry_timestamp_seconds{instance="later"}': "5000000x40",
        },
    ),
)

OF_CLIENTS = (
    Case(
        "KshareCertificateExpires",
        *(15, 40, {"instance": "soon", "listener": "SSL"}),
        "The certificate of listener SSL of soon expires in 13d 23h 30m 0s",
        {
            'kshare_gateway_certificate_expiry_timestamp_seconds{instance="soon",listener="SSL"}': "1210200x40",
            'kshare_gateway_certificate_expiry_timestamp_seconds{instance="later",listener="SSL"}': "5000000x40",
        },
    ),
    Case(
        "KshareConnectionsRefused",
        *(10, 30, {"instance": "g"}),
        "g refused 50 connections in 10 minutes",
        {'kshare_gateway_connections_refused_total{instance="g"}': "0x5 0+5x40"},
    ),
    Case(
        "KshareGatewayMemoryFull",
        *(10, 30, {"instance": "g"}),
        "Requests and responses use 95% of the bytes that g may hold",
        {
            'kshare_gateway_queued_bytes{instance="g"}': "10x5 95x40",
            'kshare_gateway_queued_limit_bytes{instance="g"}': "100x45",
        },
    ),
)

OF_THE_PIPELINE = (
    Case(
        "KsharePipelineStalled",
        *(29, 60, {"instance": "p"}),
        "The pipeline p does not read the delivery history",
        {
            'kshare_pipeline_last_success_timestamp_seconds{instance="p"}': "0+60x10 600x60",
            'kshare_pipeline_last_success_timestamp_seconds{instance="works"}': "0+60x70",
        },
    ),
    Case(
        "KsharePipelineMartsStale",
        *(65, 80, {"instance": "p"}),
        "The marts of the pipeline p are out of date",
        {'kshare_pipeline_marts_last_success_timestamp_seconds{instance="p"}': "0x90"},
    ),
    Case(
        "KsharePipelineQuarantines",
        *(9, 20, {"instance": "p"}),
        "The pipeline p put 3 records into quarantine in an hour",
        {'kshare_pipeline_quarantined_records_total{instance="p"}': "0x10 3x20"},
    ),
)

OF_FIRST_EVENTS = (
    Case(
        "KsharePoisonMessages",
        *(9, 12, {"group": "new", "topic": "t"}),
        "10 records of t reached the delivery count limit in new and were archived",
        {
            'kshare_leader_share_archived_records_total{group="new",topic="t",partition="0",reason="delivery_limit"}': (
                "_x10 10x80"
            )
        },
    ),
    Case(
        "KshareDeadLettersGivenUp",
        *(9, 16, {"group": "new", "topic": "t"}),
        "15 records of new were archived without a dead letter because its configs forbid one",
        {'kshare_leader_share_dead_letters_given_up_total{group="new",topic="t",partition="0"}': "_x10 15x80"},
    ),
    Case(
        "KshareStateTruncated",
        *(9, 16, {"group": "g", "topic": "t"}),
        "The log of t has lost records that g knew of: the state of 15 offsets was dropped",
        {f"kshare_leader_share_truncated_offsets_total{{{ONE_PARTITION}}}": "_x10 15x80"},
    ),
    Case(
        "KshareHandlerFails",
        *(9, 12, {"instance": "l", "service": "Leader", "method": "Rare"}),
        "l failed in 1 calls of Leader/Rare, which is a bug",
        {
            'kshare_rpc_server_call_failures_total{instance="l",service="Leader",method="Rare",kind="handler"}': (
                "_x10 1x80"
            )
        },
    ),
    Case(
        "KsharePipelineQuarantines",
        *(9, 20, {"instance": "new"}),
        "The pipeline new put 3 records into quarantine in an hour",
        {'kshare_pipeline_quarantined_records_total{instance="new"}': "_x10 3x80"},
    ),
)
"""Series that begin with their final values, since the events came before the first scrape."""

CASES: tuple[Case, ...] = (*OF_GROUPS, *OF_STATE, *OF_PROCESSES, *OF_CLIENTS, *OF_THE_PIPELINE)
