"""What kshare needs of an existing cluster: typed requests, sent to any broker, the controller or a partition's leader.

`Cluster` is the one over sockets. A simulated cluster answers the same typed requests under virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from kshare_upstream.connection import BrokerAddress
from kshare_wire.api_versions import VersionRange
from kshare_wire.messages import Request, Response

NO_LEADER = -1
REQUESTS = "requests"
"""The purpose of requests that are answered at once."""

AResponse = TypeVar("AResponse", bound=Response)


class LeaderUnknown(OSError):
    """A partition has no leader now, or there is no such partition; the text says which partition."""


class UpstreamPartitionName(NamedTuple):
    """A partition of the existing cluster, by its topic's name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that is alive."""

    node_id: int
    address: BrokerAddress
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionLeader:
    """The leader of a partition, NO_LEADER while there is none, and its epoch (KIP-320)."""

    node_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic; `error_code` says why it has no partitions here, such as UNKNOWN_TOPIC_OR_PARTITION."""

    name: str
    topic_id: bytes
    """16 bytes; zero where the cluster has no topic ids (before Kafka 2.8)."""
    leaders: Mapping[int, PartitionLeader]
    error_code: int = 0
    replication_factor: int = 0
    """The lowest of its partitions."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The brokers, and the topics that were asked for."""

    cluster_id: str | None
    controller_id: int
    brokers: Mapping[int, Broker]
    topics: Mapping[str, Topic] = field(default_factory=dict)


class Upstream(Protocol):
    """An existing cluster. Every method raises ConnectionLost, AuthenticationFailed or NotServed."""

    async def describe(self, topics: Sequence[str] | None) -> ClusterView:
        """The cluster as a broker knows it now, with these topics, or all of them; nothing is created."""
        ...

    async def versions(self) -> Mapping[int, VersionRange]:
        """The versions of each API that every broker serves."""
        ...

    async def ask_any(self, request: Request[AResponse], served: VersionRange) -> AResponse: ...

    async def ask_broker(
        self,
        node_id: int,
        request: Request[AResponse],
        served: VersionRange,
        *,
        wait_ms: int = 0,
        purpose: str = REQUESTS,
    ) -> AResponse:
        """Requests of one purpose are answered in order: those that wait at the broker have a purpose of their own."""
        ...

    async def ask_controller(self, request: Request[AResponse], served: VersionRange) -> AResponse: ...

    async def leader_of(self, at: UpstreamPartitionName) -> int:
        """The node id of the partition's leader, from the last view that had it; LeaderUnknown."""
        ...

    def forget_leader(self, at: UpstreamPartitionName) -> None:
        """A broker said that it does not lead the partition: `leader_of` asks again."""
        ...


class OpenedUpstream(Upstream, Protocol):
    """An existing cluster whose connections belong to one node."""

    async def close(self) -> None: ...


OpenUpstream = Callable[[], OpenedUpstream]
"""Makes the client of the existing cluster; nothing is connected before its first request."""
