"""An existing cluster over sockets: its brokers, its partition leaders, and requests sent to the right broker.

There is one connection to each broker for each purpose, opened at the first request and again after it was lost. A
purpose is a name: requests that wait at the broker have one of their own, because a broker answers in order.

A broker may hang: it holds its connections open and answers nothing. When it has been silent for `silence_ms`, another
broker is asked for the cluster's brokers. If the hung one is not among them any more, its connections are closed, so
that requests go on at the new leaders instead of waiting for the request timeout.

A broker that is cut off from its controller answers, but does not learn of elections. So brokers are asked for Metadata
in turn, and a leader is not replaced by one of an older epoch (`newest_leaders`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from kshare_upstream.connection import (
    BrokerAddress,
    ClientSettings,
    Connection,
    ConnectionLost,
    NotServed,
    open_connection,
)
from kshare_upstream.newest_leaders import NewestLeaders
from kshare_upstream.port import (
    NO_LEADER,
    REQUESTS,
    AResponse,
    Broker,
    ClusterView,
    LeaderUnknown,
    PartitionLeader,
    Topic,
    UpstreamPartitionName,
)
from kshare_upstream.sasl import AuthenticationFailed
from kshare_upstream.shared_descriptions import SharedDescriptions
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.metadata import MetadataRequest, MetadataRequestTopic
from kshare_wire.generated.responses.metadata import MetadataResponse
from kshare_wire.messages import Request

METADATA = VersionRange(7, 12)
"""Leader epochs since version 7, topic ids since version 10."""
_BOOTSTRAP = -1


class BrokersUnknown(ConnectionLost):
    """A broker answers and names no brokers: it has just started, or its controller has fenced all of them."""


class Cluster:
    """The client of one cluster; `close` ends its connections."""

    def __init__(self, bootstrap: Sequence[BrokerAddress], settings: ClientSettings) -> None:
        """`bootstrap` are addresses of some brokers; one that answers is enough."""
        self._bootstrap = list(bootstrap)
        self._settings = settings
        self._view = ClusterView(None, _BOOTSTRAP, {})
        self._leaders: dict[UpstreamPartitionName, int] = {}
        self._newest = NewestLeaders()
        self._turn = 0
        """How often brokers were asked for Metadata."""
        self._connections: dict[tuple[int, str], asyncio.Task[Connection]] = {}
        self._retired: dict[Connection, int] = {}
        """Connections near the end of their sessions, with their brokers; each is closed after its last response."""
        self._descriptions = SharedDescriptions(self._describe)
        self._is_closed = False
        self._watch_timer: asyncio.TimerHandle | None = None
        self._lookup: asyncio.Task[None] | None = None
        """Asks for the cluster's brokers, because one is silent."""

    async def close(self) -> None:
        """Ends all connections; a request that still comes gets ConnectionLost: its connection would stay open."""
        self._is_closed = True
        if self._watch_timer is not None:
            self._watch_timer.cancel()
        if self._lookup is not None:
            self._lookup.cancel()
        for connection in self._retired:
            connection.close()
        self._retired.clear()
        opening, self._connections = list(self._connections.values()), {}
        for task in opening:
            task.cancel()
        for result in await asyncio.gather(*opening, return_exceptions=True):
            if isinstance(result, Connection):
                result.close()
        await self._descriptions.ended()

    async def describe(self, topics: Sequence[str] | None) -> ClusterView:
        """See `port.Upstream`. One without topics is not shared: it is how a broker that hangs is noticed."""
        return await (self._descriptions.describe(topics) if topics else self._describe(topics))

    async def _describe(self, topics: Sequence[str] | None) -> ClusterView:
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        found = _view(await self._ask_each(self._in_turn(), request, METADATA, lambda answer: bool(answer.brokers)))
        self._drop_connections_to_others(found)
        current = {name: self._newest.current(topic, len(found.brokers)) for name, topic in found.topics.items()}
        view = self._view = dataclasses.replace(found, topics=current)
        for topic in view.topics.values():
            for partition, leader in topic.leaders.items():
                self._leaders[UpstreamPartitionName(topic.name, partition)] = leader.node_id
        return view

    async def versions(self) -> Mapping[int, VersionRange]:
        view = await self.describe([])
        ranges = [(await self._connection(node_id, REQUESTS)).versions for node_id in view.brokers]
        return common_versions(ranges)

    async def ask_any(self, request: Request[AResponse], served: VersionRange) -> AResponse:
        """Asks brokers one after the other, those with a connection first and silent ones last, until one answers.

        A request whose connection was lost may have taken effect before another broker is asked.
        """
        silent = self._silent()
        nodes = sorted(self._view.brokers, key=lambda node_id: (node_id in silent, not self._is_connected(node_id)))
        return await self._ask_each(nodes, request, served, lambda answer: True)

    def _in_turn(self) -> list[int]:
        """The brokers from the next one on; last those without a usable connection, and those that are silent.

        If the next one has no connection, one is opened for its next turn, and the look-up does not wait for it.
        """
        nodes, silent = sorted(self._view.brokers), self._silent()
        start = self._turn % max(1, len(nodes))
        self._turn += 1
        in_turn = [*nodes[start:], *nodes[:start]]
        if in_turn and not self._is_closed and not self._is_usable(in_turn[0]):
            self._connecting(in_turn[0], REQUESTS)
        return sorted(in_turn, key=lambda node_id: (node_id in silent, not self._is_usable(node_id)))

    async def _ask_each(
        self,
        nodes: Sequence[int],
        request: Request[AResponse],
        served: VersionRange,
        is_informed: Callable[[AResponse], bool],
    ) -> AResponse:
        """Asks these brokers, and last a bootstrap address, until one answers that `is_informed`.

        BrokersUnknown if one answers and none is.
        """
        problem: Exception | None = None
        first = self._bootstrap[0]
        for node_id in [*nodes, _BOOTSTRAP]:
            try:
                answer = await self.ask_broker(node_id, request, served)
            except (ConnectionLost, NotServed, AuthenticationFailed) as error:
                if problem is None or type(problem) is ConnectionLost:  # the others say more
                    problem = error
                continue
            if is_informed(answer):
                return answer
            if node_id == _BOOTSTRAP and self._bootstrap[0] is first:  # not after another request did
                self._begin_elsewhere()
            problem = BrokersUnknown(
                "the brokers that answer know no live broker: they have just started, or cannot reach their controller"
            )
        assert problem is not None
        raise problem

    async def ask_broker(
        self,
        node_id: int,
        request: Request[AResponse],
        served: VersionRange,
        *,
        wait_ms: int = 0,
        purpose: str = REQUESTS,
    ) -> AResponse:
        connection = await self._connection(node_id, purpose)
        self._watch()
        return await connection.ask(request, served, wait_ms=wait_ms)

    async def ask_controller(self, request: Request[AResponse], served: VersionRange) -> AResponse:
        """With KRaft every broker passes such requests on to the controller, and Metadata names any broker."""
        if self._view.controller_id not in self._view.brokers:
            await self.describe([])
        node_id = self._view.controller_id
        if node_id not in self._view.brokers:
            return await self.ask_any(request, served)
        return await self.ask_broker(node_id, request, served)

    async def leader_of(self, at: UpstreamPartitionName) -> int:
        if self._leaders.get(at, NO_LEADER) == NO_LEADER:
            await self.describe([at.topic])
        node_id = self._leaders.get(at, NO_LEADER)
        if node_id == NO_LEADER:
            raise LeaderUnknown(f"partition {at} has no leader")
        return node_id

    def forget_leader(self, at: UpstreamPartitionName) -> None:
        self._leaders.pop(at, None)

    def _watch(self) -> None:
        if self._watch_timer is None and not self._is_closed:
            interval_s = self._settings.silence_ms / 3000
            self._watch_timer = asyncio.get_running_loop().call_later(interval_s, self._look_for_silence)

    def _look_for_silence(self) -> None:
        """Looks for silent brokers, and does so again while a request is under way."""
        self._watch_timer = None
        if self._silent() and (self._lookup is None or self._lookup.done()):
            self._lookup = asyncio.get_running_loop().create_task(self._look_up_brokers())
        if any(not connection.is_idle for _, connection in self._open_connections()):
            self._watch()

    async def _look_up_brokers(self) -> None:
        with contextlib.suppress(ConnectionLost, NotServed, AuthenticationFailed):  # the requests under way tell it
            await self.describe([])

    def _silent(self) -> set[int]:
        """The brokers that owe a response and have sent nothing on that connection for `silence_ms`."""
        limit_s = self._settings.silence_ms / 1000
        return {node_id for node_id, connection in self._open_connections() if connection.silent_s > limit_s}

    def _open_connections(self) -> Iterator[tuple[int, Connection]]:
        for (node_id, _), task in self._connections.items():
            if task.done() and not task.cancelled() and task.exception() is None and task.result().is_open:
                yield node_id, task.result()
        for connection, node_id in self._retired.items():
            if connection.is_open:
                yield node_id, connection

    def _is_connected(self, node_id: int) -> bool:
        task = self._connections.get((node_id, REQUESTS))
        return task is not None and task.done() and not task.cancelled() and task.exception() is None

    def _is_usable(self, node_id: int) -> bool:
        """Whether a request can be sent at once."""
        task = self._connections.get((node_id, REQUESTS))
        return task is not None and task.done() and _is_usable(task)

    async def _connection(self, node_id: int, purpose: str) -> Connection:
        """The open connection, or a new one; callers that need it at the same time share it."""
        if self._is_closed:
            raise ConnectionLost("the client of the existing cluster is closed")
        return await asyncio.shield(self._connecting(node_id, purpose))

    def _connecting(self, node_id: int, purpose: str) -> asyncio.Task[Connection]:
        """Begins to connect where there is no connection; the client is not closed."""
        key = (node_id, purpose)
        task = self._connections.get(key)
        if task is not None and task.done() and not _is_usable(task):
            if not task.cancelled() and task.exception() is None:
                self._retire(node_id, task.result())
            task = None
        if task is None:
            task = asyncio.get_running_loop().create_task(self._open(node_id))
            task.add_done_callback(_note_failure)
            self._connections[key] = task
        return task

    def _retire(self, node_id: int, connection: Connection) -> None:
        connection.close_when_idle()
        self._retired[connection] = node_id
        self._retired = {each: broker for each, broker in self._retired.items() if each.is_open}

    async def _open(self, node_id: int) -> Connection:
        if node_id == _BOOTSTRAP:
            return await self._open_bootstrap()
        broker = self._view.brokers.get(node_id)
        if broker is None:
            raise ConnectionLost(f"broker {node_id} is not among the cluster's brokers")
        return await open_connection(broker.address, self._settings)

    def _begin_elsewhere(self) -> None:
        """Tries another bootstrap address next."""
        self._bootstrap.append(self._bootstrap.pop(0))
        for key in [key for key in self._connections if key[0] == _BOOTSTRAP]:
            self._connections.pop(key).add_done_callback(_close_result)

    async def _open_bootstrap(self) -> Connection:
        problems = []
        for address in self._bootstrap:
            try:
                return await open_connection(address, self._settings)
            except ConnectionLost as error:
                problems.append(str(error))
        raise ConnectionLost("; ".join(problems))

    def _drop_connections_to_others(self, view: ClusterView) -> None:
        """Closes connections to brokers that are gone or have another address."""
        for key in [key for key in self._connections if self._is_another(key[0], view)]:
            self._connections.pop(key).add_done_callback(_close_result)
        for connection, node_id in self._retired.items():
            if self._is_another(node_id, view):
                connection.close()

    def _is_another(self, node_id: int, view: ClusterView) -> bool:
        """Whether a broker is gone by a newer view, or has another address."""
        before, now = self._view.brokers.get(node_id), view.brokers.get(node_id)
        is_moved = before is not None and now is not None and before.address != now.address
        return node_id != _BOOTSTRAP and (now is None or is_moved)


def common_versions(ranges: Sequence[Mapping[int, VersionRange]]) -> dict[int, VersionRange]:
    """The versions that are in all ranges, by API key; APIs that one side lacks are left out."""
    if not ranges:
        return {}
    common: dict[int, VersionRange] = {}
    for api_key in set.intersection(*(set(each) for each in ranges)):
        lowest = max(each[api_key].minimum for each in ranges)
        highest = min(each[api_key].maximum for each in ranges)
        if lowest <= highest:
            common[api_key] = VersionRange(lowest, highest)
    return common


def _is_usable(task: asyncio.Task[Connection]) -> bool:
    if task.cancelled() or task.exception() is not None:
        return False
    connection = task.result()
    until_s = connection.usable_until_s
    return connection.is_open and (until_s is None or asyncio.get_running_loop().time() < until_s)


def _note_failure(task: asyncio.Task[Connection]) -> None:
    """Takes note of a failure, which every waiter is told, so that asyncio does not report it as never retrieved."""
    if not task.cancelled():
        task.exception()


def _close_result(task: asyncio.Task[Connection]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


def _view(answer: MetadataResponse) -> ClusterView:
    brokers = {
        broker.node_id: Broker(broker.node_id, BrokerAddress(broker.host, broker.port), broker.rack)
        for broker in answer.brokers
    }
    topics = {
        topic.name: Topic(
            topic.name,
            topic.topic_id,
            {
                partition.partition_index: PartitionLeader(partition.leader_id, partition.leader_epoch)
                for partition in topic.partitions
            },
            topic.error_code,
            min((len(partition.replica_nodes) for partition in topic.partitions), default=0),
        )
        for topic in answer.topics
        if topic.name is not None
    }
    return ClusterView(answer.cluster_id, answer.controller_id, brokers, topics)
