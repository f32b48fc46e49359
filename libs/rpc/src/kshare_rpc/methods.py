"""All RPC methods between the roles, by name; comments on the messages say which Kafka RPC each translates."""

from __future__ import annotations

from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as coordinator
from kshare_rpc.generated.kshare.v1 import leader_pb2 as leader
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as share_coordinator
from kshare_rpc.network import Method

SHARE_COORDINATOR = "ShareCoordinator"
LEADER = "Leader"
COORDINATOR = "Coordinator"

INITIALIZE_SHARE_GROUP_STATE = Method(
    SHARE_COORDINATOR,
    "InitializeShareGroupState",
    share_coordinator.InitializeShareGroupStateRequest,
    share_coordinator.InitializeShareGroupStateResponse,
)
READ_SHARE_GROUP_STATE = Method(
    SHARE_COORDINATOR,
    "ReadShareGroupState",
    share_coordinator.ReadShareGroupStateRequest,
    share_coordinator.ReadShareGroupStateResponse,
)
WRITE_SHARE_GROUP_STATE = Method(
    SHARE_COORDINATOR,
    "WriteShareGroupState",
    share_coordinator.WriteShareGroupStateRequest,
    share_coordinator.WriteShareGroupStateResponse,
)
TRUNCATE_SHARE_GROUP_STATE = Method(
    SHARE_COORDINATOR,
    "TruncateShareGroupState",
    share_coordinator.TruncateShareGroupStateRequest,
    share_coordinator.TruncateShareGroupStateResponse,
)
DELETE_SHARE_GROUP_STATE = Method(
    SHARE_COORDINATOR,
    "DeleteShareGroupState",
    share_coordinator.DeleteShareGroupStateRequest,
    share_coordinator.DeleteShareGroupStateResponse,
)
READ_SHARE_GROUP_STATE_SUMMARY = Method(
    SHARE_COORDINATOR,
    "ReadShareGroupStateSummary",
    share_coordinator.ReadShareGroupStateSummaryRequest,
    share_coordinator.ReadShareGroupStateSummaryResponse,
)
LIST_STATE_SUMMARIES = Method(
    SHARE_COORDINATOR,
    "ListStateSummaries",
    share_coordinator.ListStateSummariesRequest,
    share_coordinator.ListStateSummariesResponse,
)
TRANSFER_STATE_PARTITION = Method(
    SHARE_COORDINATOR,
    "TransferStatePartition",
    share_coordinator.TransferStatePartitionRequest,
    share_coordinator.TransferStatePartitionResponse,
    has_payload=True,
)
FETCH_STATE_TOPIC = Method(
    SHARE_COORDINATOR,
    "FetchStateTopic",
    leader.FetchRequest,
    leader.FetchResponse,
    has_payload=True,
    has_long_answer=True,
)
LIST_STATE_TOPIC_OFFSETS = Method(
    SHARE_COORDINATOR, "ListStateTopicOffsets", leader.ListOffsetsRequest, leader.ListOffsetsResponse
)
BACKUP_STATE = Method(
    SHARE_COORDINATOR, "BackupState", share_coordinator.BackupStateRequest, share_coordinator.BackupStateResponse
)

PRODUCE = Method(LEADER, "Produce", leader.ProduceRequest, leader.ProduceResponse, has_payload=True)
FETCH = Method(LEADER, "Fetch", leader.FetchRequest, leader.FetchResponse, has_payload=True, has_long_answer=True)
LIST_OFFSETS = Method(LEADER, "ListOffsets", leader.ListOffsetsRequest, leader.ListOffsetsResponse)
SHARE_FETCH = Method(
    LEADER,
    "ShareFetch",
    leader.ShareFetchRequest,
    leader.ShareFetchResponse,
    has_payload=True,
    has_long_answer=True,
)
SHARE_ACKNOWLEDGE = Method(LEADER, "ShareAcknowledge", leader.ShareAcknowledgeRequest, leader.ShareAcknowledgeResponse)
RELEASE_SHARE_SESSION = Method(
    LEADER, "ReleaseShareSession", leader.ReleaseShareSessionRequest, leader.ReleaseShareSessionResponse
)
WRITE_TXN_MARKERS = Method(LEADER, "WriteTxnMarkers", leader.WriteTxnMarkersRequest, leader.WriteTxnMarkersResponse)
DROP_SHARE_PARTITIONS = Method(
    LEADER, "DropSharePartitions", leader.DropSharePartitionsRequest, leader.DropSharePartitionsResponse
)
DELETE_RECORDS = Method(LEADER, "DeleteRecords", leader.DeleteRecordsRequest, leader.DeleteRecordsResponse)
DESCRIBE_PRODUCERS = Method(
    LEADER, "DescribeProducers", leader.DescribeProducersRequest, leader.DescribeProducersResponse
)
DESCRIBE_LOG_DIRS = Method(LEADER, "DescribeLogDirs", leader.DescribeLogDirsRequest, leader.DescribeLogDirsResponse)
APPEND_DEAD_LETTERS = Method(
    LEADER,
    "AppendDeadLetters",
    leader.AppendDeadLettersRequest,
    leader.AppendDeadLettersResponse,
    has_payload=True,
)
TRANSFER_PARTITION = Method(
    LEADER,
    "TransferPartition",
    leader.TransferPartitionRequest,
    leader.TransferPartitionResponse,
    has_payload=True,
)

REGISTER_NODE = Method(COORDINATOR, "RegisterNode", coordinator.RegisterNodeRequest, coordinator.RegisterNodeResponse)
DEREGISTER_NODE = Method(
    COORDINATOR, "DeregisterNode", coordinator.DeregisterNodeRequest, coordinator.DeregisterNodeResponse
)
WATCH_CATALOG = Method(COORDINATOR, "WatchCatalog", coordinator.WatchCatalogRequest, coordinator.WatchCatalogResponse)
DESCRIBE_CATALOG = Method(
    COORDINATOR, "DescribeCatalog", coordinator.DescribeCatalogRequest, coordinator.DescribeCatalogResponse
)
COMPLETE_STATE_PARTITION_MOVE = Method(
    COORDINATOR,
    "CompleteStatePartitionMove",
    coordinator.CompleteStatePartitionMoveRequest,
    coordinator.CompleteStatePartitionMoveResponse,
)
DRAIN_SHARE_COORDINATOR = Method(
    COORDINATOR,
    "DrainShareCoordinator",
    coordinator.DrainShareCoordinatorRequest,
    coordinator.DrainShareCoordinatorResponse,
)
DESCRIBE_NODES = Method(
    COORDINATOR, "DescribeNodes", coordinator.DescribeNodesRequest, coordinator.DescribeNodesResponse
)
DESCRIBE_STATE_PARTITIONS = Method(
    COORDINATOR,
    "DescribeStatePartitions",
    coordinator.DescribeStatePartitionsRequest,
    coordinator.DescribeStatePartitionsResponse,
)
MOVE_PARTITIONS = Method(
    COORDINATOR, "MovePartitions", coordinator.MovePartitionsRequest, coordinator.MovePartitionsResponse
)
ADVANCE_PARTITION_MOVE = Method(
    COORDINATOR,
    "AdvancePartitionMove",
    coordinator.AdvancePartitionMoveRequest,
    coordinator.AdvancePartitionMoveResponse,
)
DRAIN_LEADER = Method(COORDINATOR, "DrainLeader", coordinator.DrainLeaderRequest, coordinator.DrainLeaderResponse)
GIVE_UP_NODE = Method(COORDINATOR, "GiveUpNode", coordinator.GiveUpNodeRequest, coordinator.GiveUpNodeResponse)
DESCRIBE_PARTITIONS = Method(
    COORDINATOR, "DescribePartitions", coordinator.DescribePartitionsRequest, coordinator.DescribePartitionsResponse
)
CREATE_TOPICS = Method(COORDINATOR, "CreateTopics", coordinator.CreateTopicsRequest, coordinator.CreateTopicsResponse)
DELETE_TOPICS = Method(COORDINATOR, "DeleteTopics", coordinator.DeleteTopicsRequest, coordinator.DeleteTopicsResponse)
CREATE_PARTITIONS = Method(
    COORDINATOR, "CreatePartitions", coordinator.CreatePartitionsRequest, coordinator.CreatePartitionsResponse
)
INCREMENTAL_ALTER_CONFIGS = Method(
    COORDINATOR,
    "IncrementalAlterConfigs",
    coordinator.IncrementalAlterConfigsRequest,
    coordinator.IncrementalAlterConfigsResponse,
)
INIT_PRODUCER_ID = Method(
    COORDINATOR, "InitProducerId", coordinator.InitProducerIdRequest, coordinator.InitProducerIdResponse
)
ADD_PARTITIONS_TO_TXN = Method(
    COORDINATOR, "AddPartitionsToTxn", coordinator.AddPartitionsToTxnRequest, coordinator.AddPartitionsToTxnResponse
)
ADD_OFFSETS_TO_TXN = Method(
    COORDINATOR, "AddOffsetsToTxn", coordinator.AddOffsetsToTxnRequest, coordinator.AddOffsetsToTxnResponse
)
END_TXN = Method(COORDINATOR, "EndTxn", coordinator.EndTxnRequest, coordinator.EndTxnResponse)
COMPLETE_TRANSACTION_OFFSETS = Method(
    COORDINATOR,
    "CompleteTransactionOffsets",
    coordinator.CompleteTransactionOffsetsRequest,
    coordinator.CompleteTransactionOffsetsResponse,
)
DESCRIBE_TRANSACTIONS = Method(
    COORDINATOR,
    "DescribeTransactions",
    coordinator.DescribeTransactionsRequest,
    coordinator.DescribeTransactionsResponse,
)
LIST_TRANSACTIONS = Method(
    COORDINATOR, "ListTransactions", coordinator.ListTransactionsRequest, coordinator.ListTransactionsResponse
)
OFFSET_COMMIT = Method(COORDINATOR, "OffsetCommit", coordinator.OffsetCommitRequest, coordinator.OffsetCommitResponse)
OFFSET_FETCH = Method(COORDINATOR, "OffsetFetch", coordinator.OffsetFetchRequest, coordinator.OffsetFetchResponse)
TXN_OFFSET_COMMIT = Method(
    COORDINATOR, "TxnOffsetCommit", coordinator.TxnOffsetCommitRequest, coordinator.OffsetCommitResponse
)
CONSUMER_GROUP_HEARTBEAT = Method(
    COORDINATOR,
    "ConsumerGroupHeartbeat",
    coordinator.ConsumerGroupHeartbeatRequest,
    coordinator.ConsumerGroupHeartbeatResponse,
)
CONSUMER_GROUP_DESCRIBE = Method(
    COORDINATOR,
    "ConsumerGroupDescribe",
    coordinator.ConsumerGroupDescribeRequest,
    coordinator.ConsumerGroupDescribeResponse,
)
DESCRIBE_SHARE_GROUP_OFFSETS = Method(
    COORDINATOR,
    "DescribeShareGroupOffsets",
    coordinator.DescribeShareGroupOffsetsRequest,
    coordinator.DescribeShareGroupOffsetsResponse,
)
ALTER_SHARE_GROUP_OFFSETS = Method(
    COORDINATOR,
    "AlterShareGroupOffsets",
    coordinator.AlterShareGroupOffsetsRequest,
    coordinator.AlterShareGroupOffsetsResponse,
)
DELETE_SHARE_GROUP_OFFSETS = Method(
    COORDINATOR,
    "DeleteShareGroupOffsets",
    coordinator.DeleteShareGroupOffsetsRequest,
    coordinator.DeleteShareGroupOffsetsResponse,
)
SHARE_GROUP_HEARTBEAT = Method(
    COORDINATOR,
    "ShareGroupHeartbeat",
    coordinator.ShareGroupHeartbeatRequest,
    coordinator.ShareGroupHeartbeatResponse,
)
SHARE_GROUP_DESCRIBE = Method(
    COORDINATOR,
    "ShareGroupDescribe",
    coordinator.ShareGroupDescribeRequest,
    coordinator.ShareGroupDescribeResponse,
)
LIST_GROUPS = Method(COORDINATOR, "ListGroups", coordinator.ListGroupsRequest, coordinator.ListGroupsResponse)
JOIN_GROUP = Method(COORDINATOR, "JoinGroup", coordinator.JoinGroupRequest, coordinator.JoinGroupResponse)
SYNC_GROUP = Method(COORDINATOR, "SyncGroup", coordinator.SyncGroupRequest, coordinator.SyncGroupResponse)
HEARTBEAT = Method(COORDINATOR, "Heartbeat", coordinator.HeartbeatRequest, coordinator.HeartbeatResponse)
LEAVE_GROUP = Method(COORDINATOR, "LeaveGroup", coordinator.LeaveGroupRequest, coordinator.LeaveGroupResponse)
DESCRIBE_GROUPS = Method(
    COORDINATOR, "DescribeGroups", coordinator.DescribeGroupsRequest, coordinator.DescribeGroupsResponse
)
DELETE_GROUPS = Method(COORDINATOR, "DeleteGroups", coordinator.DeleteGroupsRequest, coordinator.DeleteGroupsResponse)
OFFSET_DELETE = Method(COORDINATOR, "OffsetDelete", coordinator.OffsetDeleteRequest, coordinator.OffsetDeleteResponse)
