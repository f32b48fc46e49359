"""The routes of mode share: only share consumers and administrators come to kshare.

Brokers are gateways here, so what needs a certain broker of the cluster is not relayed. Produce, Fetch, consumer groups
and transactions are announced, because librdkafka concludes from their versions what a broker can do, and refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.dispatch import SERVED_APIS
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access
from kshare_gateway.served_apis import ServedApi
from kshare_gateway.upstream.handlers.api_versions import API_VERSIONS
from kshare_gateway.upstream.handlers.config_resources import LIST_CONFIG_RESOURCES
from kshare_gateway.upstream.handlers.configs import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from kshare_gateway.upstream.handlers.list_offsets import LIST_OFFSETS
from kshare_gateway.upstream.handlers.metadata import METADATA_OF_GATEWAYS
from kshare_gateway.upstream.handlers.topics import CREATE_TOPICS
from kshare_gateway.upstream.proxy_mode import SHARE_GROUP_APIS
from kshare_gateway.upstream.routes import Routes
from kshare_wire.generated.api_keys import ApiKey

OWN = (
    *SHARE_GROUP_APIS,
    *(ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER, ApiKey.LIST_GROUPS, ApiKey.DELETE_GROUPS),
    *(ApiKey.DESCRIBE_GROUPS, ApiKey.CONSUMER_GROUP_DESCRIBE),
)
"""What the rows of the embedded engine serve."""
ANSWERED = (API_VERSIONS, LIST_CONFIG_RESOURCES, LIST_OFFSETS, METADATA_OF_GATEWAYS)
AS_UPSTREAM = (CREATE_TOPICS, DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS)
RELAYED = frozenset(
    {
        *(ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.DELETE_TOPICS),
        *(ApiKey.CREATE_PARTITIONS, ApiKey.ALTER_CONFIGS, ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS),
        *(ApiKey.DELETE_ACLS, ApiKey.ELECT_LEADERS, ApiKey.ALTER_PARTITION_REASSIGNMENTS),
        *(ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS),
        *(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ApiKey.ALTER_USER_SCRAM_CREDENTIALS),
        *(ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN),
        *(ApiKey.DESCRIBE_DELEGATION_TOKEN, ApiKey.DESCRIBE_QUORUM, ApiKey.UPDATE_FEATURES),
        *(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY),
    }
)
FOR_CONTROLLER = frozenset(
    {
        *(ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.ELECT_LEADERS),
        *(ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS),
        *(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, ApiKey.UPDATE_FEATURES),
    }
)
"""What other brokers of a cluster with ZooKeeper answer with NOT_CONTROLLER."""
REFUSED = (
    *(ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT),
    *(ApiKey.LEAVE_GROUP, ApiKey.SYNC_GROUP, ApiKey.DELETE_RECORDS, ApiKey.INIT_PRODUCER_ID),
    *(ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN),
    *(ApiKey.TXN_OFFSET_COMMIT, ApiKey.OFFSET_DELETE, ApiKey.DESCRIBE_PRODUCERS, ApiKey.DESCRIBE_TRANSACTIONS),
    *(ApiKey.LIST_TRANSACTIONS, ApiKey.CONSUMER_GROUP_HEARTBEAT),
)
REFUSED_TO_ALL = Access(by_handler="it is refused to every client that the cluster has authenticated")
"""Not open to all: a stranger gets no answer, and does not learn the cluster's address."""


def share_routes(bootstrap: str) -> Routes:
    """`bootstrap` is the cluster's address, for those that have to go there."""
    rows = [*(SERVED_APIS[key] for key in OWN), *ANSWERED, *AS_UPSTREAM]
    rows += [_refused(SERVED_APIS[key], bootstrap) for key in REFUSED]
    return Routes(
        handlers={int(row.api_key): row for row in rows},
        relayed=frozenset(map(int, RELAYED)),
        as_upstream=frozenset(int(row.api_key) for row in AS_UPSTREAM),
        for_controller=frozenset(map(int, FOR_CONTROLLER)),
    )


def _refused(served: ServedApi, bootstrap: str) -> ServedApi:
    """The row, with an answer that names the cluster's address, as far as the response has a place for a text."""
    text = f"This kshare serves share groups only; {served.name} is for the Kafka cluster at {bootstrap}"

    async def refuse(context: RequestContext, request: Any) -> None:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, text)

    return replace(served, handle=refuse, answer_now=None, access=REFUSED_TO_ALL)
