"""The delivery history of the kafka engine: Produce to the topic of that name in the existing cluster.

Topic and partition count are those of the catalog, which mirrors the cluster. Batches have no producer id, so one whose
response was lost may be stored twice, as in the embedded engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from kshare_core.configs import Configs
from kshare_core.delivery_history import HISTORY_TOPIC
from kshare_core.errors import ErrorCode
from kshare_leader.history.limits import PRODUCE_TIMEOUT_MS
from kshare_leader.history.target import (
    CannotPublish,
    HistoryBatch,
    HistoryTopic,
    Outcome,
    outcome_of,
    topic_configs,
)
from kshare_leader.topic_creation import TopicNotCreated, look_up_created_topic
from kshare_leader.upstream.message_limits import MessageLimits
from kshare_leader.upstream.upstream_log import UNREACHABLE
from kshare_rpc.catalog import CatalogView
from kshare_rpc.network import Channel
from kshare_upstream.partition_log import LEADER_CHANGED, Refused
from kshare_upstream.port import LeaderUnknown, Upstream, UpstreamPartitionName
from kshare_upstream.shared_produce import SharedProduce
from kshare_upstream.topics import Replicas, create_topic, too_few_replicas

PURPOSE = "history"
"""Its requests have connections of their own: nothing that deliveries need waits behind them."""
NEEDED_OPERATIONS = ("Create", "Describe", "DescribeConfigs", "Write")
CONFIGS_REFUSED = (ErrorCode.INVALID_CONFIG, ErrorCode.POLICY_VIOLATION)
"""Error codes of a CreateTopics whose configs the cluster does not accept."""


class ClusterHistoryTarget:
    """Implements `target.HistoryTarget`.

    `coordinator` returns the channel to the coordinator. `wait_for_version` waits until the catalog's view has a
    version, with a timeout in milliseconds.
    """

    def __init__(
        self,
        *,
        upstream: Upstream,
        view: Callable[[], CatalogView],
        coordinator: Callable[[], Channel],
        wait_for_version: Callable[[int, int], Awaitable[bool]],
        configs: Configs,
        report: Callable[[str], None],
    ) -> None:
        self._upstream = upstream
        self._view = view
        self._coordinator = coordinator
        self._wait_for_version = wait_for_version
        self._configs = configs
        self._report = report
        self._limits = MessageLimits(upstream)
        self._produce = SharedProduce(upstream, timeout_ms=PRODUCE_TIMEOUT_MS, purpose=PURPOSE)

    async def topic(self) -> HistoryTopic:
        try:
            async with asyncio.timeout(PRODUCE_TIMEOUT_MS / 1000):
                topic = self._view().topics_by_name.get(HISTORY_TOPIC)
                if topic is None:
                    await self._create()
                    topic = self._view().topics_by_name[HISTORY_TOPIC]
                limit_bytes = await self._limits.of(HISTORY_TOPIC)
        except TopicNotCreated as failure:
            raise CannotPublish(str(failure)) from failure
        except (*UNREACHABLE, TimeoutError) as error:
            raise CannotPublish(f"topic {HISTORY_TOPIC} of the existing cluster: {_reason(error)}") from error
        return HistoryTopic(topic.topic_id, len(topic.partitions), limit_bytes)

    async def _create(self) -> None:
        configs = topic_configs(self._configs)
        try:
            await self._create_with(configs)
        except Refused as refused:
            if refused.code not in CONFIGS_REFUSED:
                raise
            await self._create_with({})
            listed = ", ".join(f"{name}={value}" for name, value in configs.items())
            self._report(f"topic {HISTORY_TOPIC} has the cluster's default configs, without {listed}: {refused}")
        await look_up_created_topic(HISTORY_TOPIC, "topic", self._coordinator(), self._wait_for_version, self._view)

    async def _create_with(self, configs: Mapping[str, str]) -> None:
        view = await self._upstream.describe([])
        replicas = Replicas.of(self._configs)
        count = replicas.for_new_topic(len(view.brokers))
        is_new = await create_topic(
            self._upstream,
            HISTORY_TOPIC,
            partitions=self._configs.integer("kshare.delivery.history.topic.num.partitions"),
            replicas=count,
            configs=configs,
        )
        if is_new and count < replicas.wanted:
            self._report(too_few_replicas([HISTORY_TOPIC], count, replicas.wanted))

    async def leaders_of(self, topic: HistoryTopic, partitions: Iterable[int]) -> Mapping[int, str]:
        found: dict[int, str] = {}
        try:
            async with asyncio.timeout(PRODUCE_TIMEOUT_MS / 1000):
                for partition in partitions:
                    try:
                        found[partition] = str(await self._upstream.leader_of(_at(partition)))
                    except LeaderUnknown:
                        continue
        except (*UNREACHABLE, TimeoutError) as error:
            raise CannotPublish(f"the leaders of topic {HISTORY_TOPIC} are not known: {_reason(error)}") from error
        return found

    async def append(self, topic: HistoryTopic, leader: str, batches: Sequence[HistoryBatch]) -> list[Outcome]:
        return await asyncio.gather(*(self._append(topic, int(leader), batch) for batch in batches))

    async def _append(self, topic: HistoryTopic, node_id: int, batch: HistoryBatch) -> Outcome:
        at = _at(batch.partition)
        try:
            async with asyncio.timeout(PRODUCE_TIMEOUT_MS / 1000):
                answer = await self._produce.append(node_id, at, batch.data)
                code = answer.error_code
                if code in LEADER_CHANGED:
                    self._upstream.forget_leader(at)
                elif code == ErrorCode.MESSAGE_TOO_LARGE:
                    self._limits.forget(HISTORY_TOPIC)
                    if await self._limits.of(HISTORY_TOPIC) < topic.max_message_bytes:
                        return Outcome(batch, f"max.message.bytes of topic {HISTORY_TOPIC} has become smaller")
        except (*UNREACHABLE, TimeoutError) as error:
            self._upstream.forget_leader(at)
            return Outcome(batch, f"broker {node_id}: {_reason(error)}")
        message = "" if code == ErrorCode.NONE else _reason(Refused(code, "Produce", answer.error_message))
        return outcome_of(batch, code, message)

    async def close(self) -> None:
        await self._produce.close()


def _at(partition: int) -> UpstreamPartitionName:
    return UpstreamPartitionName(HISTORY_TOPIC, partition)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"no answer within {PRODUCE_TIMEOUT_MS} ms"
    if isinstance(error, Refused) and error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return f"{error}; kshare's user needs {', '.join(NEEDED_OPERATIONS)} on it"
    return str(error)
