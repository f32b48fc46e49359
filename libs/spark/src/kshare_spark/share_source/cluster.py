"""The brokers of a cluster for one blocking client: connections, leaders, topic ids, the group's coordinator.

Transient failures (an unreachable broker, a leader that moves) are retried until the client's
`default.api.timeout.ms` has passed. Failures that a user has to fix (no such topic, no permission) raise ClusterError
at once.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from kshare_core.errors import ErrorCode
from kshare_kafka_client.connection import ConnectionFailed, error_text
from kshare_spark.share_source.connection import Connection
from kshare_spark.share_source.options import ClientProperties
from kshare_wire.generated.requests.find_coordinator import FindCoordinatorRequest
from kshare_wire.generated.requests.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kshare_wire.generated.requests.metadata import MetadataRequest, MetadataRequestTopic
from kshare_wire.messages import Request, Response

METADATA_VERSION = 12
FIND_COORDINATOR_VERSION = 4
LIST_OFFSETS_VERSION = 7
GROUP_KEY = 0
LATEST_TIMESTAMP, EARLIEST_TIMESTAMP = -1, -2
RETRY_PAUSE_S = 0.1
RETRIABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)
Result = TypeVar("Result")
AResponse = TypeVar("AResponse", bound=Response)


class ClusterError(RuntimeError):
    """The cluster rejected a request or did not respond in time; the text has the request and the reason."""


class UnknownTopic(ClusterError):
    """A topic does not exist, even after all retries: brokers learn late of one that was just created."""


class TryAgain(Exception):
    """A transient failure, raised within `Cluster.until_done`, which retries."""


class _NoTopic(TryAgain):
    """The broker knows no topic of this name."""


@dataclass(frozen=True)
class TopicView:
    """A topic by Metadata: `leaders` has node ids by partition, -1 for none."""

    name: str
    topic_id: str
    leaders: dict[int, int]


class Cluster:
    """One client's view of a cluster; not thread-safe."""

    def __init__(self, properties: ClientProperties, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.properties = properties
        self._clock = clock
        self._addresses: dict[int, tuple[str, int]] = {}
        self._connections: dict[tuple[str, int], Connection] = {}
        self._topics: dict[str, TopicView] = {}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def node(self, node_id: int) -> Connection:
        """The connection to a broker, opened if there is none; ConnectionFailed."""
        if node_id not in self._addresses:
            raise ConnectionFailed(f"broker {node_id} is not known")
        return self._connection(self._addresses[node_id])

    def drop(self, connection: Connection) -> None:
        """Closes a connection that failed; the next request makes a new one."""
        connection.close()
        self._connections = {key: kept for key, kept in self._connections.items() if kept is not connection}

    def any(self) -> Connection:
        """A connection to any broker: an open one, or a new one; ConnectionFailed if no broker is reachable."""
        for connection in self._connections.values():
            return connection
        failures = []
        for address in dict.fromkeys((*self.properties.bootstrap, *self._addresses.values())):
            try:
                return self._connection(address)
            except ConnectionFailed as error:
                failures.append(str(error))
        raise ConnectionFailed("; ".join(failures))

    def topics(self, names: Iterable[str], *, fresh: bool = False) -> dict[str, TopicView]:
        """Views of these topics; cached ones unless `fresh`. ClusterError."""
        wanted = list(names)
        if fresh or any(name not in self._topics for name in wanted):
            self.until_done("asking for metadata", lambda: self._ask_metadata(wanted))
        return {name: self._topics[name] for name in wanted}

    def leader(self, topic: str, partition: int) -> int:
        """The node id of a partition's leader; TryAgain if there is none now."""
        view = self.topics([topic])[topic]
        node_id = view.leaders.get(partition, -1)
        if node_id < 0:
            self._topics.pop(topic, None)
            raise TryAgain(f"{topic}-{partition} has no leader")
        return node_id

    def forget_leaders(self, topics: Iterable[str]) -> None:
        """Forgets the leaders of these topics, which were wrong: the next look-up requests them."""
        for topic in topics:
            self._topics.pop(topic, None)

    def coordinator(self, group_id: str) -> Connection:
        """The connection to a group's coordinator; ConnectionFailed, TryAgain or ClusterError."""
        request = FindCoordinatorRequest(key_type=GROUP_KEY, coordinator_keys=[group_id])
        answer = self._ask_any(request, FIND_COORDINATOR_VERSION)
        found = answer.coordinators[0]
        check(found.error_code, f"group {group_id}: no coordinator", found.error_message)
        self._addresses[found.node_id] = (found.host, found.port)
        return self.node(found.node_id)

    def end_offsets(self, names: Iterable[str]) -> dict[tuple[str, int], int]:
        """The log end of each partition of these topics (read_uncommitted). ClusterError."""
        wanted = list(names)
        return {
            (name, partition): self.listed_offset(name, partition, LATEST_TIMESTAMP)
            for name, view in self.topics(wanted, fresh=True).items()
            for partition in view.leaders
        }

    def listed_offset(self, topic: str, partition: int, timestamp: int) -> int:
        """LATEST_TIMESTAMP: the log's end; EARLIEST_TIMESTAMP: its start. ClusterError."""
        return self.until_done("asking for offsets", lambda: self._ask_offset(topic, partition, timestamp))

    def until_done(self, what: str, attempt: Callable[[], Result]) -> Result:
        """Retries while brokers are unreachable or `attempt` raises TryAgain; after the timeout ClusterError."""
        deadline = self._clock() + self.properties.api_timeout_ms / 1000
        while True:
            try:
                return attempt()
            except (ConnectionFailed, TryAgain) as error:
                if self._clock() >= deadline:
                    text = f"{what}: no success in {self.properties.api_timeout_ms} ms; last: {error}"
                    raise (UnknownTopic if isinstance(error, _NoTopic) else ClusterError)(text) from error
                time.sleep(RETRY_PAUSE_S)

    def _connection(self, address: tuple[str, int]) -> Connection:
        if address not in self._connections:
            self._connections[address] = Connection(address, self.properties)
        return self._connections[address]

    def _ask_any(self, request: Request[AResponse], version: int) -> AResponse:
        connection = self.any()
        try:
            return connection.ask(request, version)
        except ConnectionFailed:
            self.drop(connection)
            raise

    def _ask_metadata(self, names: list[str]) -> None:
        topics = [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        answer = self._ask_any(request, METADATA_VERSION)
        for broker in answer.brokers:
            self._addresses[broker.node_id] = (broker.host, broker.port)
        for topic in answer.topics:
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise _NoTopic(f"topic {topic.name} does not exist")
            check(topic.error_code, f"topic {topic.name}")
            leaders = {found.partition_index: found.leader_id for found in topic.partitions}
            self._topics[str(topic.name)] = TopicView(str(topic.name), text_of_id(topic.topic_id), leaders)

    def _ask_offset(self, topic: str, partition: int, timestamp: int) -> int:
        wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])])
        answer = self.ask_leader(topic, partition, request, LIST_OFFSETS_VERSION)
        listed = answer.topics[0].partitions[0]
        if listed.error_code:
            self.forget_leaders([topic])
        check(listed.error_code, f"{topic}-{partition}")
        return listed.offset

    def ask_leader(self, topic: str, partition: int, request: Request[AResponse], version: int) -> AResponse:
        """The response of a partition's leader; after ConnectionFailed or TryAgain leaders are looked up again."""
        try:
            connection = self.node(self.leader(topic, partition))
        except ConnectionFailed:
            self.forget_leaders([topic])
            raise
        try:
            return connection.ask(request, version)
        except ConnectionFailed:
            self.drop(connection)
            self.forget_leaders([topic])
            raise


def text_of_id(topic_id: bytes) -> str:
    """A topic id in the form of the source's offsets: a UUID's text."""
    return str(uuid.UUID(bytes=topic_id))


def bytes_of_id(topic_id: str) -> bytes:
    return uuid.UUID(topic_id).bytes


def check(code: int, what: str, message: str | None = None) -> None:
    """Raises TryAgain for transient error codes and ClusterError for others; nothing for NONE."""
    if not code:
        return
    text = f"{what}: {error_text(code, message)}"
    if code in RETRIABLE:
        raise TryAgain(text)
    raise ClusterError(text)
