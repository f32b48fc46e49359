"""The addresses that requests by hand are sent to, found as clients find them: by Metadata and FindCoordinator.

A cluster of several brokers answers at another address with NOT_LEADER_OR_FOLLOWER or NOT_COORDINATOR.
"""

from __future__ import annotations

import socket
import time

from kshare_core.errors import ErrorCode
from kshare_wire.generated.api_keys import ApiKey
from support.clients.kafka_requests import KafkaRequests

METADATA_VERSION, FIND_COORDINATOR_VERSION = 12, 4
GROUP = 0
TIMEOUT_S = 60.0
UNREADY = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
"""Apache Kafka makes the topic of its groups when it is first asked for the coordinator of one."""


def address_of_leader(bootstrap: str, topic: str, partition: int = 0) -> str:
    """Waits until the cluster says which it is: a broker may not know a new topic yet."""
    deadline = time.monotonic() + TIMEOUT_S
    with KafkaRequests(bootstrap) as requests:
        while True:
            wanted = [{"topic_id": bytes(16), "name": topic}]
            answer = requests.ask(ApiKey.METADATA, METADATA_VERSION, topics=wanted, allow_auto_topic_creation=False)
            addresses = {int(broker.node_id): f"{broker.host}:{broker.port}" for broker in answer.brokers}
            leaders = {int(each.partition_index): int(each.leader_id) for each in answer.topics[0].partitions}
            if address := addresses.get(leaders.get(partition, -1)):
                return address
            assert time.monotonic() < deadline, answer
            time.sleep(0.1)


def connection_to_leader(bootstrap: str, topic: str, partition: int = 0, timeout_s: float = 30.0) -> socket.socket:
    """For `raw_kafka` and `raw_records`."""
    host, _, port = address_of_leader(bootstrap, topic, partition).rpartition(":")
    return socket.create_connection((host, int(port)), timeout_s)


def address_of_coordinator(bootstrap: str, group: str) -> str:
    """Waits until the group has a coordinator; `bootstrap` itself where its id is one that no group can have."""
    deadline = time.monotonic() + TIMEOUT_S
    with KafkaRequests(bootstrap) as requests:
        while True:
            answer = requests.ask(
                ApiKey.FIND_COORDINATOR, FIND_COORDINATOR_VERSION, key_type=GROUP, coordinator_keys=[group]
            )
            (found,) = answer.coordinators
            code = ErrorCode(int(found.error_code))
            if code not in UNREADY:
                return bootstrap if code else f"{found.host}:{found.port}"
            assert time.monotonic() < deadline, answer
            time.sleep(0.1)
