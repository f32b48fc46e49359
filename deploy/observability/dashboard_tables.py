"""The dashboards, as tables; `dashboards.py` writes them as Grafana imports them."""

from __future__ import annotations

from collections.abc import Mapping

from dashboard_model import (
    OF_A_RELEASE,
    Dashboard,
    Panel,
    Query,
    Variable,
    each,
    of,
    of_processes,
    quantiles,
    rate,
    rates,
    stat,
    total,
)

LAG = "kshare_leader_share_lag_records"
ACKNOWLEDGED = "kshare_leader_share_acknowledged_records_total"
GROUP_TOPIC = 'group=~"$group",topic=~"$topic"'


def store_panels(role: str) -> tuple[Panel, ...]:
    """RocksDB of a role."""
    return (
        Panel(
            "RocksDB",
            "bytes",
            "Tables on disk, and write buffers in memory that are not flushed yet.",
            (
                each(f"kshare_{role}_rocksdb_table_bytes", "tables"),
                each(f"kshare_{role}_rocksdb_memtable_bytes", "write buffers"),
            ),
        ),
        Panel(
            "Pending compaction",
            "bytes",
            "What compaction has to rewrite. It grows if the disk is too slow for the writes.",
            (each(f"kshare_{role}_rocksdb_pending_compaction_bytes"),),
        ),
    )


OVERVIEW = Dashboard(
    "kshare overview",
    OF_A_RELEASE,
    (
        stat(
            *(
                "Unhealthy nodes",
                "none",
                "Nodes whose health service responds NOT_SERVING; their logs have the reason.",
            ),
            f"count({of('kshare_node_healthy')} == 0) or vector(0)",
            bad_from=1,
        ),
        stat(
            *("Active coordinators", "none", "Must be 1."),
            f"sum({of('kshare_coordinator_active')})",
            bad_from=1,
            is_bad_below=True,
        ),
        stat(
            *("Without leader or owner", "none", "Topic partitions and state partitions that are not served."),
            f"max({of('kshare_coordinator_partitions_without_leader')})"
            f" + max({of('kshare_coordinator_state_partitions_without_owner')})",
            bad_from=1,
        ),
        stat(*("Lag of all groups", "short", "Records that wait for an acceptance."), f"sum({of(LAG)})"),
        Panel("Healthy nodes", "none", "By role.", (Query(total("kshare_node_healthy", "role"), "{{role}}"),)),
        Panel(
            "Lag by group", "short", "Records that wait for an acceptance.", (Query(total(LAG, "group"), "{{group}}"),)
        ),
        Panel("Accepted by group", "rps", "Durable acceptances.", (rates(ACKNOWLEDGED, "group", 'type="accept"'),)),
        Panel(
            "Archived by group",
            "rps",
            "Records that will not be delivered again: rejected, at the delivery count limit, or gone.",
            (rates("kshare_leader_share_archived_records_total", "group, reason"),),
        ),
        Panel("Records in", "rps", "Durable appends.", (rates("kshare_leader_topic_records_in_total", "topic"),)),
        Panel(
            "Bytes in and out",
            "Bps",
            "Record batches, as stored.",
            (
                rates("kshare_leader_topic_bytes_in_total", "topic", legend="in"),
                rates("kshare_leader_topic_bytes_out_total", "topic", legend="out"),
            ),
        ),
        Panel(
            "Groups",
            "none",
            "By type and state, as ListGroups has them.",
            (Query(total("kshare_coordinator_groups", "type, state"), "{{type}} {{state}}"),),
        ),
        Panel(
            "Event loop lag",
            "s",
            "How late timers run. Above 0.1 s a process has more work than one core does.",
            quantiles("kshare_event_loop_lag_seconds", "instance"),
        ),
        Panel(
            "CPU",
            "percentunit",
            "Of one core.",
            (
                Query(
                    of_processes(rate("process_cpu_seconds_total", "instance")),
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            "Memory",
            "bytes",
            "Resident memory, and the budget that the process keeps to.",
            (each("kshare_memory_resident_bytes"), each("kshare_memory_budget_bytes", "budget")),
        ),
        Panel(
            "Free disk",
            "percentunit",
            "Of the file system with the data directory of each process that has one.",
            (
                Query(
                    f"{of('kshare_data_directory_free_bytes')} / {of('kshare_data_directory_size_bytes')}",
                    "{{instance}}",
                ),
            ),
        ),
    ),
)

GROUP_DASHBOARD = Dashboard(
    "kshare group",
    (
        *OF_A_RELEASE,
        Variable("group", LAG, 'namespace=~"$namespace",release=~"$release"'),
        Variable("topic", LAG, 'namespace=~"$namespace",release=~"$release",group=~"$group"'),
    ),
    (
        stat(*("Lag", "short", "Records that wait for an acceptance."), f"sum({of(LAG, GROUP_TOPIC)})"),
        stat(
            *("Accepted", "rps", "Durable acceptances."),
            "sum(rate(" + of(ACKNOWLEDGED, GROUP_TOPIC + ',type="accept"') + "[$__rate_interval]))",
        ),
        stat(
            *("Oldest lock", "s", "Since its acquisition or renewal; at most the lock duration, 30 s by default."),
            f"max({of('kshare_leader_share_oldest_acquired_age_seconds', GROUP_TOPIC)})",
            bad_from=300,
        ),
        stat(
            *("Dead letters", "short", "Stored in the last hour."),
            f"sum(increase({of('kshare_leader_share_dead_letters_total', GROUP_TOPIC)}[1h]))",
            bad_from=1,
        ),
        Panel(
            "Lag by partition",
            "short",
            "Records that wait for an acceptance, also of partitions that no member reads.",
            (Query(total(LAG, "topic, partition", GROUP_TOPIC), "{{topic}}-{{partition}}"),),
        ),
        Panel(
            "In flight",
            "short",
            "Acquired: locked by a member. Available: released, to be delivered again. Archiving: dead letter pending.",
            (Query(total("kshare_leader_share_in_flight_records", "state", GROUP_TOPIC), "{{state}}"),),
        ),
        Panel(
            "Oldest acquisition lock",
            "s",
            "A long-held lock points to a member that hangs.",
            (
                Query(
                    "max by (topic, partition) ("
                    + of("kshare_leader_share_oldest_acquired_age_seconds", GROUP_TOPIC)
                    + ")",
                    "{{topic}}-{{partition}}",
                ),
            ),
        ),
        Panel(
            "Deliveries and outcomes",
            "rps",
            "Deliveries, how members acknowledged them, and locks that ended without an acknowledgement.",
            (
                Query(rate("kshare_leader_share_acquired_records_total", "group", GROUP_TOPIC), "{{group}} delivered"),
                Query(rate(ACKNOWLEDGED, "type", GROUP_TOPIC), "{{type}}"),
                Query(rate("kshare_leader_share_expired_locks_records_total", "group", GROUP_TOPIC), "lock expired"),
                Query(
                    rate("kshare_leader_share_session_released_records_total", "group", GROUP_TOPIC), "session ended"
                ),
            ),
        ),
        Panel(
            "Poison messages",
            "rps",
            "Records that will not be delivered again, and dead letters.",
            (
                Query(rate("kshare_leader_share_archived_records_total", "reason", GROUP_TOPIC), "{{reason}}"),
                Query(rate("kshare_leader_share_dead_letters_total", "group", GROUP_TOPIC), "{{group}} dead letters"),
            ),
        ),
        Panel(
            "Delivery counts",
            "percentunit",
            "Fraction of deliveries that are redeliveries.",
            (
                Query(
                    "1 - sum(rate("
                    + of("kshare_leader_share_delivery_count_bucket", GROUP_TOPIC + ',le="1.0"')
                    + "[$__rate_interval])) / sum(rate("
                    + of("kshare_leader_share_delivery_count_count", GROUP_TOPIC)
                    + "[$__rate_interval]))",
                    "redelivered",
                ),
            ),
        ),
        Panel(
            "From append to acceptance",
            "s",
            "Age of records when they are accepted.",
            quantiles("kshare_leader_share_append_to_accept_seconds", "topic", GROUP_TOPIC),
        ),
        Panel(
            "Acknowledgement",
            "s",
            "Until all changes are durable.",
            quantiles("kshare_leader_share_acknowledge_duration_seconds", "group", 'group=~"$group"'),
            has_exemplars=True,
        ),
        Panel(
            "ShareFetch at the leader",
            "s",
            "waited=true: too few records were available at first, and the wait is included.",
            quantiles("kshare_leader_share_fetch_duration_seconds", "waited", 'group=~"$group"'),
            has_exemplars=True,
        ),
    ),
)

LOGS = Dashboard(
    "kshare logs",
    OF_A_RELEASE,
    (
        stat(
            *("Offline partitions", "none", "Partitions whose log cannot be opened."),
            f"sum({of('kshare_leader_offline_partitions')})",
            bad_from=1,
        ),
        stat(
            *("Failed writes", "none", "Of appends, in the last hour."),
            f"sum(increase({of('kshare_leader_log_write_failures_total')}[1h]))",
            bad_from=1,
        ),
        stat(*("Log size", "bytes", "Of all topics at all leaders."), f"sum({of('kshare_leader_topic_log_bytes')})"),
        stat(
            *("History dropped", "none", "Events of the delivery history that were dropped in the last hour."),
            "sum(increase(" + of("kshare_leader_delivery_history_events_total", 'outcome="dropped"') + "[1h]))",
            bad_from=1,
        ),
        Panel(
            "Log writes",
            "s",
            "One atomic write of all appends of a turn, with its fsync; producers wait for it.",
            quantiles("kshare_leader_log_write_duration_seconds", "instance"),
        ),
        Panel(
            "Writes",
            "wps",
            "Each carries all appends that arrived during the one before.",
            (rates("kshare_leader_log_write_duration_seconds_count", "instance"),),
        ),
        Panel(
            "Records per write",
            "short",
            "Appends share a write under load.",
            (
                Query(
                    rate("kshare_leader_topic_records_in_total", "instance")
                    + " / "
                    + rate("kshare_leader_log_write_duration_seconds_count", "instance"),
                    "{{instance}}",
                ),
            ),
        ),
        Panel("Bytes in", "Bps", "By topic.", (rates("kshare_leader_topic_bytes_in_total", "topic"),)),
        Panel("Batches in", "ops", "By topic.", (rates("kshare_leader_topic_batches_in_total", "topic"),)),
        Panel(
            "Log size by topic",
            "bytes",
            "Segments; retention and compaction bound them.",
            (Query(total("kshare_leader_topic_log_bytes", "topic"), "{{topic}}"),),
        ),
        Panel(
            "Partitions",
            "none",
            "Led by each leader.",
            (Query(total("kshare_leader_topic_partitions", "instance"), "{{instance}}"),),
        ),
        *store_panels("leader"),
        Panel(
            "Delivery history",
            "ops",
            "Events by outcome; dropped ones are gaps in the audit and in reports.",
            (rates("kshare_leader_delivery_history_events_total", "outcome"),),
        ),
    ),
)

SHARE_COORDINATORS = Dashboard(
    "kshare share coordinators",
    OF_A_RELEASE,
    (
        stat(
            *("Damaged", "none", "State partitions and share-partitions whose stored state is not served."),
            f"sum({of('kshare_share_coordinator_damaged_families')})"
            f" + sum({of('kshare_share_coordinator_corrupt_share_partitions')})",
            bad_from=1,
        ),
        stat(
            *("Failed writes", "none", "Of state, in the last hour."),
            f"sum(increase({of('kshare_share_coordinator_state_append_failures_total')}[1h]))",
            bad_from=1,
        ),
        stat(
            *("Moving state partitions", "none", "Being reassigned to another share coordinator."),
            f"max({of('kshare_coordinator_moving_state_partitions')})",
        ),
        stat(
            *("State on disk", "bytes", "Tables of all share coordinators."),
            f"sum({of('kshare_share_coordinator_rocksdb_table_bytes')})",
        ),
        Panel("State partitions", "none", "By owner.", (each("kshare_share_coordinator_state_partitions"),)),
        Panel(
            "Moves",
            "ops",
            "State partitions that came (in) or left (out), by step.",
            (rates("kshare_share_coordinator_state_partition_moves_total", "direction, step"),),
        ),
        Panel(
            "Operations",
            "ops",
            "What leaders and coordinators ask for, and how it ended.",
            (rates("kshare_share_coordinator_operations_total", "operation, error"),),
        ),
        Panel(
            "Durable writes",
            "s",
            "Including fsync; every acknowledgement waits for one.",
            quantiles("kshare_share_coordinator_state_append_duration_seconds", "instance"),
        ),
        Panel(
            "Records per durable write",
            "short",
            "State writes share an fsync under load.",
            quantiles("kshare_share_coordinator_state_append_records", "instance"),
        ),
        Panel(
            "Bytes written",
            "Bps",
            "Keys and values of durable state.",
            (rates("kshare_share_coordinator_state_append_bytes_total", "instance"),),
        ),
        Panel(
            "Snapshots and updates",
            "ops",
            "State records by kind.",
            (rates("kshare_share_coordinator_state_records_total", "kind"),),
        ),
        Panel(
            "Loading state",
            "s",
            "One share-partition's state from disk.",
            quantiles("kshare_share_coordinator_state_load_duration_seconds", "instance"),
        ),
        *store_panels("share_coordinator"),
    ),
)

COORDINATORS = Dashboard(
    "kshare coordinators",
    OF_A_RELEASE,
    (
        stat(
            *("Active coordinators", "none", "Must be 1."),
            f"sum({of('kshare_coordinator_active')})",
            bad_from=1,
            is_bad_below=True,
        ),
        stat(
            *("Groups", "none", "Of all types."),
            f"sum({of('kshare_coordinator_groups')})",
        ),
        stat(*("Members", "none", "Of all groups."), f"sum({of('kshare_coordinator_group_members')})"),
        stat(
            *("Catalog", "percentunit", "Bytes of the catalog, of those that it may have."),
            f"max({of('kshare_coordinator_catalog_bytes')} / {of('kshare_coordinator_catalog_bytes_limit')})",
            bad_from=0.8,
        ),
        Panel(
            "Nodes", "none", "With a lease, by role.", (Query(total("kshare_coordinator_nodes", "role"), "{{role}}"),)
        ),
        Panel(
            "Not served",
            "none",
            "Topic partitions without a live leader, and state partitions without a live share coordinator.",
            (
                Query(f"max({of('kshare_coordinator_partitions_without_leader')})", "topic partitions"),
                Query(f"max({of('kshare_coordinator_state_partitions_without_owner')})", "state partitions"),
            ),
        ),
        Panel(
            "Being reassigned",
            "none",
            "Partitions on their way to another node.",
            (
                Query(f"max({of('kshare_coordinator_moving_partitions')})", "topic partitions"),
                Query(f"max({of('kshare_coordinator_moving_state_partitions')})", "state partitions"),
            ),
        ),
        Panel(
            "Commands",
            "ops",
            "Decided, from requests and timers.",
            (rates("kshare_coordinator_commands_total", "command"),),
        ),
        Panel("Heartbeats", "ops", "By type of group.", (rates("kshare_coordinator_heartbeats_total", "type"),)),
        Panel(
            "Rebalances and expirations",
            "ops",
            "New epochs or generations by type of group; sessions, leases and timers that ran out.",
            (
                rates("kshare_coordinator_rebalances_total", "type", legend="rebalance"),
                rates("kshare_coordinator_expirations_total", "what", legend="expired"),
            ),
        ),
        Panel(
            "Durable writes",
            "s",
            "All records of a turn; heartbeats that change a group wait for one.",
            quantiles("kshare_coordinator_append_duration_seconds", "instance"),
        ),
        Panel(
            "Records per durable write",
            "short",
            "Changes share a write under load.",
            quantiles("kshare_coordinator_append_records", "instance"),
        ),
        Panel(
            "Topics and partitions",
            "none",
            "In the catalog.",
            (
                Query(f"max({of('kshare_coordinator_topics')})", "topics"),
                Query(f"max({of('kshare_coordinator_partitions')})", "partitions"),
            ),
        ),
        *store_panels("coordinator"),
    ),
)

GATEWAYS = Dashboard(
    "kshare gateways",
    OF_A_RELEASE,
    (
        stat(*("Connections", "none", "Open, at all gateways."), f"sum({of('kshare_gateway_connections')})"),
        stat(
            *("Requests", "reqps", "Of all APIs."),
            f"sum(rate({of('kshare_gateway_request_duration_seconds_count')}[$__rate_interval]))",
        ),
        stat(
            *("Errors", "ops", "Error codes in responses."),
            f"sum(rate({of('kshare_gateway_errors_total')}[$__rate_interval]))",
        ),
        stat(
            *("Refused connections", "none", "In the last hour, beyond max.connections or max.connections.per.ip."),
            f"sum(increase({of('kshare_gateway_connections_refused_total')}[1h]))",
            bad_from=1,
        ),
        Panel("Connections by gateway", "none", "Open.", (each("kshare_gateway_connections"),)),
        Panel("Share sessions", "none", "Open.", (each("kshare_gateway_share_sessions"),)),
        Panel(
            "Requests in flight",
            "none",
            "Whose responses are not written yet; long polls are among them.",
            (each("kshare_gateway_requests_under_way"),),
        ),
        Panel(
            "Requests by API",
            "reqps",
            "Responses that were built.",
            (rates("kshare_gateway_request_duration_seconds_count", "api"),),
        ),
        Panel(
            "Duration",
            "s",
            "Until the response is built; a fetch's wait is included.",
            quantiles("kshare_gateway_request_duration_seconds", "api"),
            has_exemplars=True,
        ),
        Panel(
            "Errors by API",
            "ops",
            "Error codes in responses; each partition counts.",
            (rates("kshare_gateway_errors_total", "api, error"),),
        ),
        Panel(
            "Bytes",
            "Bps",
            "From and to clients.",
            (
                rates("kshare_gateway_received_bytes_total", "instance", legend="received"),
                rates("kshare_gateway_sent_bytes_total", "instance", legend="sent"),
            ),
        ),
        Panel(
            "Held for clients",
            "percentunit",
            "Bytes of requests and responses, of kshare.queued.max.bytes. Near 1, connections are muted.",
            (
                Query(
                    f"{of('kshare_gateway_queued_bytes')} / {of('kshare_gateway_queued_limit_bytes')}", "{{instance}}"
                ),
            ),
        ),
        Panel(
            "Read-ahead: hits",
            "percentunit",
            "Record bytes of ShareFetch responses that came from the gateway's cache.",
            (
                Query(
                    f"sum(rate({of('kshare_gateway_cache_hit_bytes_total')}[$__rate_interval])) / "
                    f"(sum(rate({of('kshare_gateway_cache_hit_bytes_total')}[$__rate_interval])) + "
                    f"sum(rate({of('kshare_gateway_cache_miss_bytes_total')}[$__rate_interval])))",
                    "hits",
                ),
            ),
        ),
        Panel("Read-ahead: memory", "bytes", "Memory of the cached batches.", (each("kshare_gateway_cache_bytes"),)),
    ),
)

RPC = Dashboard(
    "kshare RPC",
    (*OF_A_RELEASE, Variable("service", "kshare_rpc_server_call_duration_seconds_count")),
    (
        stat(
            *("Calls", "reqps", "Between roles, as counted by callers."),
            "sum(rate("
            + of("kshare_rpc_client_call_duration_seconds_count", 'service=~"$service"')
            + "[$__rate_interval]))",
        ),
        stat(
            *("In flight", "none", "Long polls are among them."),
            "sum(" + of("kshare_rpc_client_calls_under_way", 'service=~"$service"') + ")",
        ),
        stat(
            *("Failed calls", "reqps", "As counted by callers; they repeat most."),
            "sum(rate("
            + of("kshare_rpc_client_call_failures_total", 'service=~"$service"')
            + "[$__rate_interval])) or vector(0)",
            bad_from=1,
        ),
        stat(
            *("Unread responses", "bytes", "That other roles have not read yet."),
            f"sum({of('kshare_rpc_server_unread_answer_bytes')})",
        ),
        Panel(
            "Calls by method",
            "reqps",
            "As counted by callers.",
            (rates("kshare_rpc_client_call_duration_seconds_count", "service, method", 'service=~"$service"'),),
        ),
        Panel(
            "Duration at the caller",
            "s",
            "Until the response or failure. Some calls are long polls.",
            quantiles("kshare_rpc_client_call_duration_seconds", "service, method", 'service=~"$service"'),
        ),
        Panel(
            "Duration at the server",
            "s",
            "From request to response. The difference to the caller's is the network and waiting event loops.",
            quantiles("kshare_rpc_server_call_duration_seconds", "service, method", 'service=~"$service"'),
            has_exemplars=True,
        ),
        Panel(
            "In flight by method",
            "none",
            "Calls being served.",
            (
                Query(
                    total("kshare_rpc_server_calls_under_way", "service, method", 'service=~"$service"'),
                    "{{service}} {{method}}",
                ),
            ),
        ),
        Panel(
            "Failed calls by kind",
            "reqps",
            "CallNotStarted and ConnectTimeout had no effect, ChannelUnavailable and CallTimeout have an unknown"
            " outcome, CallFailed was refused or failed at the server.",
            (rates("kshare_rpc_client_call_failures_total", "instance, method, kind", 'service=~"$service"'),),
        ),
        Panel(
            "Failures at the server",
            "reqps",
            "A malformed request, an exception in the handler (a bug), a stop before the response, or a denial.",
            (rates("kshare_rpc_server_call_failures_total", "instance, method, kind", 'service=~"$service"'),),
        ),
    ),
)

PIPELINE = Dashboard(
    "kshare pipeline",
    OF_A_RELEASE,
    (
        stat(
            *("Since the last success", "s", "Since a look at the delivery history ended well."),
            f"time() - max({of('kshare_pipeline_last_success_timestamp_seconds')})",
            bad_from=900,
        ),
        stat(
            *("Age of marts", "s", "Since they were last in step with the events."),
            f"time() - max({of('kshare_pipeline_marts_last_success_timestamp_seconds')})",
            bad_from=3600,
        ),
        stat(
            *("Lag", "short", "Offsets of the history topic that are not in the tables yet."),
            f"sum({of('kshare_pipeline_lag_offsets')})",
        ),
        stat(
            *("Quarantined", "none", "Records in the last hour that are no delivery history, or not wholly."),
            f"sum(increase({of('kshare_pipeline_quarantined_records_total')}[1h]))",
            bad_from=1,
        ),
        Panel(
            "Lag over time", "short", "Offsets that are not in the tables yet.", (each("kshare_pipeline_lag_offsets"),)
        ),
        Panel(
            "Events",
            "ops",
            "New rows of the table events, and events that came again and were not added.",
            (
                rates("kshare_pipeline_events_total", "instance", legend="added"),
                rates("kshare_pipeline_repeated_events_total", "instance", legend="repeated"),
            ),
        ),
        Panel(
            "Records and batches",
            "ops",
            "Read from the history topic.",
            (
                rates("kshare_pipeline_records_total", "instance", legend="records"),
                rates("kshare_pipeline_batches_total", "instance", legend="batches"),
            ),
        ),
        Panel(
            "Runs", "ops", "Looks at the topic, by how they ended.", (rates("kshare_pipeline_runs_total", "result"),)
        ),
        Panel(
            "Duration of a run",
            "s",
            "With marts where they were due.",
            (each("kshare_pipeline_last_run_seconds"),),
        ),
        Panel(
            "Mart days",
            "ops",
            "Days whose marts were computed.",
            (rates("kshare_pipeline_mart_days_total", "instance"),),
        ),
    ),
)

DASHBOARDS: Mapping[str, Dashboard] = {
    "overview": OVERVIEW,
    "group": GROUP_DASHBOARD,
    "logs": LOGS,
    "share-coordinators": SHARE_COORDINATORS,
    "coordinators": COORDINATORS,
    "gateways": GATEWAYS,
    "rpc": RPC,
    "pipeline": PIPELINE,
}
