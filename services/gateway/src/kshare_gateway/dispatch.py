"""The table of handlers by API. Its keys are those of `kshare_wire.api_versions`; a test compares them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kshare_core.errors import KafkaError
from kshare_gateway.handlers.admin import (
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    api_versions,
    create_partitions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    describe_topic_partitions,
    elect_leaders,
    incremental_alter_configs,
    list_config_resources,
    list_partition_reassignments,
    metadata,
)
from kshare_gateway.handlers.groups import (
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    streams_group_describe,
    sync_group,
)
from kshare_gateway.handlers.offsets import offset_commit, offset_delete, offset_fetch
from kshare_gateway.handlers.records import delete_records, describe_producers, fetch, list_offsets, produce
from kshare_gateway.handlers.security import describe_client_quotas, describe_user_scram_credentials, security_disabled
from kshare_gateway.handlers.share import (
    alter_share_group_offsets,
    delete_share_group_offsets,
    describe_share_group_offsets,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
)
from kshare_gateway.handlers.state import (
    delete_share_group_state,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    write_share_group_state,
)
from kshare_gateway.handlers.transactions import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    init_producer_id,
    list_transactions,
    txn_offset_commit,
)
from kshare_gateway.request_context import RequestContext
from kshare_wire.api_versions import ApiKey
from kshare_wire.messages import Body, Message

RECORD_BEARING_APIS = frozenset({ApiKey.FETCH, ApiKey.SHARE_FETCH})
"""APIs with large responses; a connection has at most one of these requests in flight."""

LONG_ANSWER_APIS = frozenset(
    {
        ApiKey.METADATA,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.LIST_CONFIG_RESOURCES,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.LIST_GROUPS,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        ApiKey.OFFSET_FETCH,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.READ_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    }
)
"""APIs where a short request can have a long response; a connection has at most one of them in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """The functions of one API: either `answer_now`, which cannot wait or fail, or `handle`; and `failed`.

    `failed` makes the response to an error of the whole request. It is missing only where a request of any number of
    elements is answered at once. `handle` returns None if the request gets no response (Produce with acks = 0).
    """

    name: str
    answer_now: Callable[[RequestContext, Message], Body] | None = None
    handle: Callable[[RequestContext, Message], Awaitable[Body | None]] | None = None
    failed: Callable[[RequestContext, Message, KafkaError], Body | None] | None = None


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.PRODUCE: Handler(name="Produce", handle=produce.handle, failed=produce.failed),
    ApiKey.FETCH: Handler(name="Fetch", handle=fetch.handle, failed=fetch.failed),
    ApiKey.LIST_OFFSETS: Handler(name="ListOffsets", handle=list_offsets.handle, failed=list_offsets.failed),
    ApiKey.METADATA: Handler(name="Metadata", handle=metadata.handle, failed=metadata.failed),
    ApiKey.OFFSET_COMMIT: Handler(name="OffsetCommit", handle=offset_commit.handle, failed=offset_commit.failed),
    ApiKey.OFFSET_FETCH: Handler(name="OffsetFetch", handle=offset_fetch.handle, failed=offset_fetch.failed),
    ApiKey.FIND_COORDINATOR: Handler(
        name="FindCoordinator", handle=find_coordinator.handle, failed=find_coordinator.failed
    ),
    ApiKey.JOIN_GROUP: Handler(name="JoinGroup", handle=join_group.handle, failed=join_group.failed),
    ApiKey.HEARTBEAT: Handler(name="Heartbeat", handle=heartbeat.handle, failed=heartbeat.failed),
    ApiKey.LEAVE_GROUP: Handler(name="LeaveGroup", handle=leave_group.handle, failed=leave_group.failed),
    ApiKey.SYNC_GROUP: Handler(name="SyncGroup", handle=sync_group.handle, failed=sync_group.failed),
    ApiKey.DESCRIBE_GROUPS: Handler(
        name="DescribeGroups", handle=describe_groups.handle, failed=describe_groups.failed
    ),
    ApiKey.LIST_GROUPS: Handler(name="ListGroups", handle=list_groups.handle, failed=list_groups.failed),
    ApiKey.API_VERSIONS: Handler(name="ApiVersions", answer_now=api_versions.answer_now),
    ApiKey.CREATE_TOPICS: Handler(name="CreateTopics", handle=create_topics.handle, failed=create_topics.failed),
    ApiKey.DELETE_TOPICS: Handler(name="DeleteTopics", handle=delete_topics.handle, failed=delete_topics.failed),
    ApiKey.DELETE_RECORDS: Handler(name="DeleteRecords", handle=delete_records.handle, failed=delete_records.failed),
    ApiKey.INIT_PRODUCER_ID: Handler(
        name="InitProducerId", handle=init_producer_id.handle, failed=init_producer_id.failed
    ),
    ApiKey.TXN_OFFSET_COMMIT: Handler(
        name="TxnOffsetCommit", handle=txn_offset_commit.handle, failed=txn_offset_commit.failed
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: Handler(
        name="AddPartitionsToTxn", handle=add_partitions_to_txn.handle, failed=add_partitions_to_txn.failed
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: Handler(
        name="AddOffsetsToTxn", handle=add_offsets_to_txn.handle, failed=add_offsets_to_txn.failed
    ),
    ApiKey.END_TXN: Handler(name="EndTxn", handle=end_txn.handle, failed=end_txn.failed),
    ApiKey.DESCRIBE_ACLS: Handler(name="DescribeAcls", answer_now=security_disabled.describe_acls),
    ApiKey.CREATE_ACLS: Handler(name="CreateAcls", answer_now=security_disabled.create_acls),
    ApiKey.DELETE_ACLS: Handler(name="DeleteAcls", answer_now=security_disabled.delete_acls),
    ApiKey.CREATE_DELEGATION_TOKEN: Handler(
        name="CreateDelegationToken", answer_now=security_disabled.create_delegation_token
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: Handler(
        name="RenewDelegationToken", answer_now=security_disabled.alter_delegation_token
    ),
    ApiKey.EXPIRE_DELEGATION_TOKEN: Handler(
        name="ExpireDelegationToken", answer_now=security_disabled.alter_delegation_token
    ),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: Handler(
        name="DescribeDelegationToken", answer_now=security_disabled.describe_delegation_token
    ),
    ApiKey.DESCRIBE_CONFIGS: Handler(
        name="DescribeConfigs", handle=describe_configs.handle, failed=describe_configs.failed
    ),
    ApiKey.ALTER_CONFIGS: Handler(name="AlterConfigs", handle=alter_configs.handle, failed=alter_configs.failed),
    ApiKey.DESCRIBE_LOG_DIRS: Handler(
        name="DescribeLogDirs", handle=describe_log_dirs.handle, failed=describe_log_dirs.failed
    ),
    ApiKey.CREATE_PARTITIONS: Handler(
        name="CreatePartitions", handle=create_partitions.handle, failed=create_partitions.failed
    ),
    ApiKey.DELETE_GROUPS: Handler(name="DeleteGroups", handle=delete_groups.handle, failed=delete_groups.failed),
    ApiKey.ELECT_LEADERS: Handler(name="ElectLeaders", answer_now=elect_leaders.answer_now),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Handler(
        name="AlterPartitionReassignments",
        answer_now=alter_partition_reassignments.answer_now,
        failed=alter_partition_reassignments.failed,
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Handler(
        name="AlterReplicaLogDirs", handle=alter_replica_log_dirs.handle, failed=alter_replica_log_dirs.failed
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Handler(
        name="ListPartitionReassignments", answer_now=list_partition_reassignments.answer_now
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Handler(
        name="DescribeClientQuotas", handle=describe_client_quotas.handle, failed=describe_client_quotas.failed
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Handler(
        name="DescribeUserScramCredentials",
        answer_now=describe_user_scram_credentials.answer_now,
        failed=describe_user_scram_credentials.failed,
    ),
    ApiKey.STREAMS_GROUP_DESCRIBE: Handler(name="StreamsGroupDescribe", answer_now=streams_group_describe.answer_now),
    ApiKey.OFFSET_DELETE: Handler(name="OffsetDelete", handle=offset_delete.handle, failed=offset_delete.failed),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Handler(
        name="IncrementalAlterConfigs",
        handle=incremental_alter_configs.handle,
        failed=incremental_alter_configs.failed,
    ),
    ApiKey.DESCRIBE_CLUSTER: Handler(
        name="DescribeCluster", handle=describe_cluster.handle, failed=describe_cluster.failed
    ),
    ApiKey.DESCRIBE_PRODUCERS: Handler(
        name="DescribeProducers", handle=describe_producers.handle, failed=describe_producers.failed
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: Handler(
        name="DescribeTransactions", handle=describe_transactions.handle, failed=describe_transactions.failed
    ),
    ApiKey.LIST_TRANSACTIONS: Handler(
        name="ListTransactions", handle=list_transactions.handle, failed=list_transactions.failed
    ),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Handler(
        name="ConsumerGroupHeartbeat",
        handle=consumer_group_heartbeat.handle,
        failed=consumer_group_heartbeat.failed,
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Handler(
        name="ConsumerGroupDescribe", handle=consumer_group_describe.handle, failed=consumer_group_describe.failed
    ),
    ApiKey.LIST_CONFIG_RESOURCES: Handler(
        name="ListConfigResources", handle=list_config_resources.handle, failed=list_config_resources.failed
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Handler(
        name="DescribeTopicPartitions",
        handle=describe_topic_partitions.handle,
        failed=describe_topic_partitions.failed,
    ),
    ApiKey.SHARE_GROUP_HEARTBEAT: Handler(
        name="ShareGroupHeartbeat", handle=share_group_heartbeat.handle, failed=share_group_heartbeat.failed
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: Handler(
        name="ShareGroupDescribe", handle=share_group_describe.handle, failed=share_group_describe.failed
    ),
    ApiKey.SHARE_FETCH: Handler(name="ShareFetch", handle=share_fetch.handle, failed=share_fetch.failed),
    ApiKey.SHARE_ACKNOWLEDGE: Handler(
        name="ShareAcknowledge", handle=share_acknowledge.handle, failed=share_acknowledge.failed
    ),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: Handler(
        name="InitializeShareGroupState",
        handle=initialize_share_group_state.handle,
        failed=initialize_share_group_state.failed,
    ),
    ApiKey.READ_SHARE_GROUP_STATE: Handler(
        name="ReadShareGroupState",
        handle=read_share_group_state.handle,
        failed=read_share_group_state.failed,
    ),
    ApiKey.WRITE_SHARE_GROUP_STATE: Handler(
        name="WriteShareGroupState",
        handle=write_share_group_state.handle,
        failed=write_share_group_state.failed,
    ),
    ApiKey.DELETE_SHARE_GROUP_STATE: Handler(
        name="DeleteShareGroupState",
        handle=delete_share_group_state.handle,
        failed=delete_share_group_state.failed,
    ),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: Handler(
        name="ReadShareGroupStateSummary",
        handle=read_share_group_state_summary.handle,
        failed=read_share_group_state_summary.failed,
    ),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: Handler(
        name="DescribeShareGroupOffsets",
        handle=describe_share_group_offsets.handle,
        failed=describe_share_group_offsets.failed,
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: Handler(
        name="AlterShareGroupOffsets",
        handle=alter_share_group_offsets.handle,
        failed=alter_share_group_offsets.failed,
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: Handler(
        name="DeleteShareGroupOffsets",
        handle=delete_share_group_offsets.handle,
        failed=delete_share_group_offsets.failed,
    ),
}
