"""The delivery history of the embedded engine: Produce to the leaders of the topic, which may be this one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from kshare_core.configs import Configs, InvalidConfig
from kshare_core.configs.topic import effective_topic_config
from kshare_core.delivery_history import HISTORY_TOPIC
from kshare_core.identifiers import TopicPartition
from kshare_leader.history.limits import PRODUCE_TIMEOUT_MS
from kshare_leader.history.target import (
    CannotPublish,
    HistoryBatch,
    HistoryTopic,
    Outcome,
    outcome_of,
    topic_configs,
)
from kshare_leader.topic_creation import CreatableTopic, TopicNotCreated, create_topic
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_rpc.generated.methods import PRODUCE
from kshare_rpc.network import CallFailed, Channel


class LeaderHistoryTarget:
    """Implements `target.HistoryTarget`.

    `channel` returns the channel to a leader's address, `coordinator` the one to the coordinator. `wait_for_version`
    waits until the catalog's view has a version, with a timeout in milliseconds.
    """

    def __init__(
        self,
        *,
        view: Callable[[], CatalogView],
        channel: Callable[[str], Channel],
        coordinator: Callable[[], Channel],
        wait_for_version: Callable[[int, int], Awaitable[bool]],
        configs: Configs,
    ) -> None:
        self._view = view
        self._channel = channel
        self._coordinator = coordinator
        self._wait_for_version = wait_for_version
        self._configs = configs

    async def topic(self) -> HistoryTopic:
        topic = self._view().topics_by_name.get(HISTORY_TOPIC)
        if topic is None or not topic.partitions:
            await self._create()
            topic = self._view().topics_by_name.get(HISTORY_TOPIC)
            if topic is None:
                raise CannotPublish(f"topic {HISTORY_TOPIC} was deleted")
        return HistoryTopic(topic.topic_id, len(topic.partitions), self._max_message_bytes(topic))

    async def _create(self) -> None:
        topic = CreatableTopic(
            name=HISTORY_TOPIC,
            num_partitions=self._configs.integer("kshare.delivery.history.topic.num.partitions"),
            replication_factor=-1,
            configs=[
                coordinator_pb2.ConfigEntry(name=name, value=value)
                for name, value in topic_configs(self._configs).items()
            ],
            internal=True,
        )
        try:
            await create_topic(topic, "topic", self._coordinator(), self._wait_for_version)
        except TopicNotCreated as failure:
            raise CannotPublish(str(failure)) from failure

    def _max_message_bytes(self, topic: coordinator_pb2.Topic) -> int:
        texts = {entry.name: entry.value for entry in topic.configs}
        try:
            return effective_topic_config(self._configs, texts).integer("max.message.bytes")
        except InvalidConfig:  # the coordinator refuses such values, so this is another version's catalog
            return effective_topic_config(self._configs, {}).integer("max.message.bytes")

    async def leaders_of(self, topic: HistoryTopic, partitions: Iterable[int]) -> Mapping[int, str]:
        view = self._view()
        addresses = ((each, view.leader_address(TopicPartition(topic.topic_id, each))) for each in partitions)
        return {partition: address for partition, address in addresses if address is not None}

    async def append(self, topic: HistoryTopic, leader: str, batches: Sequence[HistoryBatch]) -> list[Outcome]:
        request = leader_pb2.ProduceRequest(acks=-1, timeout_ms=PRODUCE_TIMEOUT_MS)
        for batch in batches:
            request.partitions.add(topic_id=topic.topic_id, partition=batch.partition, records_length=len(batch.data))
        payload = [batch.data for batch in batches]
        try:
            answer, _ = await self._channel(leader).call(PRODUCE, request, payload, timeout_ms=PRODUCE_TIMEOUT_MS)
        except CallFailed as failure:
            return [Outcome(batch, f"leader {leader}: {failure}") for batch in batches]
        results = {result.partition: result for result in answer.partitions}
        found = []
        for batch in batches:
            result = results.get(batch.partition)
            if result is None:
                found.append(Outcome(batch, f"leader {leader} left partition {batch.partition} out of its answer"))
            else:
                found.append(outcome_of(batch, result.error_code, result.error_message))
        return found

    async def close(self) -> None:
        """Nothing is kept here."""
