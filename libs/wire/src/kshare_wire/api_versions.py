"""The APIs that kshare serves and their versions: one literal table, used for ApiVersions and for dispatch.

A range has the versions that clients may use. It never exceeds what kio describes (`tests/unit/wire` compares the two),
and it includes every version that confluent-kafka 2.16 (librdkafka) and kafka-clients 4.3.1 use. librdkafka needs
Metadata 12 or more, FindCoordinator 2 or less, CreateTopics 4 or less, Produce 3 or more and Fetch 4 or more before it
fetches.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class ApiKey(IntEnum):
    """Kafka's API keys (org.apache.kafka.common.protocol.ApiKeys)."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


class VersionRange(NamedTuple):
    """A range of versions; both ends are included."""

    minimum: int
    maximum: int


SUPPORTED_VERSIONS: dict[ApiKey, VersionRange] = {
    ApiKey.PRODUCE: VersionRange(3, 13),
    ApiKey.FETCH: VersionRange(4, 18),
    ApiKey.LIST_OFFSETS: VersionRange(1, 11),
    ApiKey.METADATA: VersionRange(0, 13),
    ApiKey.OFFSET_COMMIT: VersionRange(2, 10),
    ApiKey.OFFSET_FETCH: VersionRange(1, 10),
    ApiKey.FIND_COORDINATOR: VersionRange(0, 6),
    ApiKey.JOIN_GROUP: VersionRange(0, 9),
    ApiKey.HEARTBEAT: VersionRange(0, 4),
    ApiKey.LEAVE_GROUP: VersionRange(0, 5),
    ApiKey.SYNC_GROUP: VersionRange(0, 5),
    ApiKey.DESCRIBE_GROUPS: VersionRange(0, 6),
    ApiKey.LIST_GROUPS: VersionRange(0, 5),
    ApiKey.API_VERSIONS: VersionRange(0, 4),
    ApiKey.CREATE_TOPICS: VersionRange(2, 7),
    ApiKey.DELETE_TOPICS: VersionRange(1, 6),
    ApiKey.DELETE_RECORDS: VersionRange(0, 2),
    ApiKey.INIT_PRODUCER_ID: VersionRange(0, 5),
    ApiKey.ADD_PARTITIONS_TO_TXN: VersionRange(0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: VersionRange(0, 4),
    ApiKey.END_TXN: VersionRange(0, 5),
    ApiKey.TXN_OFFSET_COMMIT: VersionRange(0, 5),
    ApiKey.DESCRIBE_ACLS: VersionRange(1, 3),
    ApiKey.CREATE_ACLS: VersionRange(1, 3),
    ApiKey.DELETE_ACLS: VersionRange(1, 3),
    ApiKey.DESCRIBE_CONFIGS: VersionRange(1, 4),
    ApiKey.ALTER_CONFIGS: VersionRange(0, 2),
    ApiKey.ALTER_REPLICA_LOG_DIRS: VersionRange(1, 2),
    ApiKey.DESCRIBE_LOG_DIRS: VersionRange(1, 5),
    ApiKey.CREATE_PARTITIONS: VersionRange(0, 3),
    ApiKey.CREATE_DELEGATION_TOKEN: VersionRange(1, 3),
    ApiKey.RENEW_DELEGATION_TOKEN: VersionRange(1, 2),
    ApiKey.EXPIRE_DELEGATION_TOKEN: VersionRange(1, 2),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: VersionRange(1, 3),
    ApiKey.DELETE_GROUPS: VersionRange(0, 2),
    ApiKey.ELECT_LEADERS: VersionRange(0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: VersionRange(0, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: VersionRange(0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: VersionRange(0, 0),
    ApiKey.OFFSET_DELETE: VersionRange(0, 0),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: VersionRange(0, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: VersionRange(0, 0),
    ApiKey.DESCRIBE_CLUSTER: VersionRange(0, 2),
    ApiKey.DESCRIBE_PRODUCERS: VersionRange(0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: VersionRange(0, 0),
    ApiKey.LIST_TRANSACTIONS: VersionRange(0, 2),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: VersionRange(0, 1),
    ApiKey.CONSUMER_GROUP_DESCRIBE: VersionRange(0, 1),
    ApiKey.LIST_CONFIG_RESOURCES: VersionRange(0, 1),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: VersionRange(0, 0),
    ApiKey.SHARE_GROUP_HEARTBEAT: VersionRange(1, 1),
    ApiKey.SHARE_GROUP_DESCRIBE: VersionRange(1, 1),
    ApiKey.SHARE_FETCH: VersionRange(1, 2),
    ApiKey.SHARE_ACKNOWLEDGE: VersionRange(1, 2),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: VersionRange(0, 0),
    ApiKey.READ_SHARE_GROUP_STATE: VersionRange(0, 0),
    ApiKey.WRITE_SHARE_GROUP_STATE: VersionRange(0, 1),
    ApiKey.DELETE_SHARE_GROUP_STATE: VersionRange(0, 0),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: VersionRange(0, 1),
    ApiKey.STREAMS_GROUP_DESCRIBE: VersionRange(0, 0),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: VersionRange(0, 1),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: VersionRange(0, 0),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: VersionRange(0, 0),
}


class Feature(NamedTuple):
    """A feature of ApiVersions (KIP-584): its supported levels and its finalized level."""

    name: str
    minimum: int
    maximum: int
    finalized: int


FEATURES = (
    Feature("group.version", 0, 1, 1),
    Feature("share.version", 0, 2, 2),
    Feature("transaction.version", 0, 2, 2),
)
"""group.version 1: consumer groups of KIP-848. share.version 1: share groups (KIP-932); 2: with dead letters
(KIP-1191). transaction.version 2: each transaction ends with a raised epoch, and leaders add partitions to
transactions themselves (KIP-890)."""
FINALIZED_FEATURES_EPOCH = 1
"""The finalized levels are fixed by the release, so their epoch is too."""


def is_supported(api_key: int, version: int) -> bool:
    versions = SUPPORTED_VERSIONS.get(api_key)  # type: ignore[call-overload]
    return versions is not None and versions.minimum <= version <= versions.maximum
