"""The routes of mode proxy: everything goes through kshare, and only share groups are served here."""

from __future__ import annotations

from kshare_gateway.dispatch import SERVED_APIS
from kshare_gateway.upstream.handlers.api_versions import API_VERSIONS
from kshare_gateway.upstream.handlers.broker_addresses import DESCRIBE_CLUSTER, FIND_COORDINATOR, METADATA
from kshare_gateway.upstream.handlers.config_resources import LIST_CONFIG_RESOURCES
from kshare_gateway.upstream.handlers.configs import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from kshare_gateway.upstream.handlers.groups import DELETE_GROUPS, LIST_GROUPS
from kshare_gateway.upstream.handlers.internal_topics import DESCRIBE_TOPIC_PARTITIONS
from kshare_gateway.upstream.handlers.topics import CREATE_TOPICS
from kshare_gateway.upstream.routes import Routes
from kshare_wire.generated.api_keys import ApiKey

SHARE_GROUP_APIS = (
    ApiKey.SHARE_GROUP_HEARTBEAT,
    ApiKey.SHARE_GROUP_DESCRIBE,
    ApiKey.SHARE_FETCH,
    ApiKey.SHARE_ACKNOWLEDGE,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE,
    ApiKey.WRITE_SHARE_GROUP_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS,
)
"""The APIs that the cluster does not have: the rows of the embedded engine serve them."""
REWRITTEN = (
    *(FIND_COORDINATOR, DESCRIBE_CLUSTER, CREATE_TOPICS, DESCRIBE_TOPIC_PARTITIONS),
    *(DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS, DELETE_GROUPS),
)
ANSWERED = (API_VERSIONS, LIST_CONFIG_RESOURCES, LIST_GROUPS, METADATA)
"""METADATA in all versions of kshare's, since share consumers need those with topic ids."""
RELAYED = frozenset(
    {
        *(ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH),
        *(ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.SYNC_GROUP, ApiKey.DESCRIBE_GROUPS),
        *(ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.DELETE_TOPICS),
        *(ApiKey.DELETE_RECORDS, ApiKey.INIT_PRODUCER_ID, ApiKey.OFFSET_FOR_LEADER_EPOCH),
        *(ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.WRITE_TXN_MARKERS),
        *(ApiKey.TXN_OFFSET_COMMIT, ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS),
        *(ApiKey.ALTER_CONFIGS, ApiKey.ALTER_REPLICA_LOG_DIRS, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.CREATE_PARTITIONS),
        *(ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN),
        *(ApiKey.DESCRIBE_DELEGATION_TOKEN, ApiKey.ELECT_LEADERS, ApiKey.ALTER_PARTITION_REASSIGNMENTS),
        *(ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.OFFSET_DELETE, ApiKey.DESCRIBE_CLIENT_QUOTAS),
        *(ApiKey.ALTER_CLIENT_QUOTAS, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ApiKey.ALTER_USER_SCRAM_CREDENTIALS),
        *(ApiKey.DESCRIBE_QUORUM, ApiKey.UPDATE_FEATURES, ApiKey.DESCRIBE_PRODUCERS, ApiKey.UNREGISTER_BROKER),
        *(ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS, ApiKey.CONSUMER_GROUP_HEARTBEAT),
        *(ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY),
        *(
            ApiKey.ADD_RAFT_VOTER,
            ApiKey.REMOVE_RAFT_VOTER,
            ApiKey.STREAMS_GROUP_HEARTBEAT,
            ApiKey.STREAMS_GROUP_DESCRIBE,
        ),
    }
)


def proxy_routes() -> Routes:
    rows = [*(SERVED_APIS[key] for key in SHARE_GROUP_APIS), *REWRITTEN, *ANSWERED]
    return Routes(
        handlers={int(row.api_key): row for row in rows},
        relayed=frozenset(map(int, RELAYED)),
        as_upstream=frozenset(int(row.api_key) for row in REWRITTEN),
    )
