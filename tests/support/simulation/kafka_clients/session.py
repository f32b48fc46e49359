"""The common part of all simulated clients: finding a gateway, metadata, and retries.

`ClusterClient` is one client machine with a connection to each gateway that it needs.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kio.schema.metadata.v12 import request as metadata_request
from kio.schema.metadata.v12 import response as metadata_response

from support.simulation.connections import ClientListeners, ConnectionLost
from support.simulation.history import History, Note
from support.simulation.kafka_clients.protocol import KafkaClient
from support.simulation.loop import VirtualLoop

MetadataRequest: Any = metadata_request.MetadataRequest
MetadataRequestTopic: Any = metadata_request.MetadataRequestTopic
MetadataResponse: Any = metadata_response.MetadataResponse


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic as a gateway describes it: where each partition's leader is (its address as a broker)."""

    topic_id: uuid.UUID
    leaders: dict[int, str]


class ClusterClient:
    """A client machine; see the module's text. `bugs` takes what a client may never see.

    `bootstrap` is read whenever a gateway is chosen, because gateways come and go.
    """

    def __init__(
        self,
        host: str,
        *,
        listeners: ClientListeners,
        bootstrap: Sequence[str],
        randomness: random.Random,
        history: History,
    ) -> None:
        self.host = host
        self.random = randomness
        self.history = history
        self.listeners = listeners
        self.loop: VirtualLoop = listeners.fabric.loop
        self._bootstrap = bootstrap
        self._clients: dict[str, KafkaClient] = {}
        self._coordinator_clients: dict[str, KafkaClient] = {}
        self._current = randomness.choice(self._bootstrap)

    def now(self) -> float:
        return self.loop.time()

    def note(self, text: str) -> None:
        self.history.add(Note(self.now(), f"{self.host} {text}"))

    def bug(self, text: str) -> None:
        """Notes that the cluster did what it may never do."""
        self.listeners.fabric.bugs.append(f"at {self.now():.3f} s {self.host}: {text}")

    def at(self, address: str) -> KafkaClient:
        """The client for one gateway."""
        return self._client_of(self._clients, address)

    def _client_of(self, clients: dict[str, KafkaClient], address: str) -> KafkaClient:
        if address not in clients:
            clients[address] = KafkaClient(self.listeners, self.host, address)
        return clients[address]

    async def call_any(self, request: Any, response_type: Any, *, timeout_s: float = 10.0) -> Any:
        """Asks the gateway that answered last; after a failure, another one next time. ConnectionLost."""
        return await self._call_any(self._clients, request, response_type, timeout_s)

    async def call_coordinator(self, request: Any, response_type: Any, *, timeout_s: float = 10.0) -> Any:
        """`call_any` on a connection for the group only, as clients have it: no fetch is answered before it."""
        return await self._call_any(self._coordinator_clients, request, response_type, timeout_s)

    async def _call_any(
        self, clients: dict[str, KafkaClient], request: Any, response_type: Any, timeout_s: float
    ) -> Any:
        try:
            return await self._client_of(clients, self._current).call(request, response_type, timeout_s=timeout_s)
        except ConnectionLost:
            self._current = self.random.choice(self._bootstrap)
            raise

    async def metadata(self, topic: str) -> TopicMetadata | None:
        """None where the topic or its leaders are not known yet. ConnectionLost."""
        addresses, found = await self._described(topic)
        if found.error_code != 0:
            return None
        leaders = {
            partition.partition_index: addresses[partition.leader_id]
            for partition in found.partitions
            if partition.leader_id in addresses
        }
        return TopicMetadata(found.topic_id, leaders) if leaders else None

    async def partition_count(self, topic: str) -> int:
        """Also of partitions without a leader; 0 where the gateway that answers knows no such topic. ConnectionLost."""
        _, found = await self._described(topic)
        return len(found.partitions)

    async def _described(self, topic: str) -> tuple[dict[int, str], Any]:
        """The addresses of the brokers by node id, and the answer about the topic. ConnectionLost."""
        request = MetadataRequest(
            topics=(MetadataRequestTopic(topic_id=None, name=topic),),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        answer = await self.call_any(request, MetadataResponse)
        return {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}, answer.topics[0]

    def cut_all(self) -> None:
        """The machine is gone: no goodbye to anybody."""
        for connection in self.listeners.open(self.host):
            connection.cut()

    def close_all(self) -> None:
        for client in (*self._clients.values(), *self._coordinator_clients.values()):
            client.close()
