"""A share consumer that does one thing at a time, as a test says it; for scenarios that are worked out by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from kio.schema.produce.v9 import request as produce_request
from kio.schema.produce.v9 import response as produce_response
from kio.schema.share_acknowledge.v2 import request as acknowledge_request
from kio.schema.share_acknowledge.v2 import response as acknowledge_response
from kio.schema.share_fetch.v2 import request as fetch_request
from kio.schema.share_fetch.v2 import response as fetch_response
from kio.schema.share_group_heartbeat.v1 import request as heartbeat_request
from kio.schema.share_group_heartbeat.v1 import response as heartbeat_response

from support.simulation.cluster import KAFKA, Cluster
from support.simulation.history import Run
from support.simulation.hosts import EPOCH_MS
from support.simulation.kafka_clients.admin import Admin
from support.simulation.kafka_clients.protocol import build_batch, milliseconds
from support.simulation.kafka_clients.session import ClusterClient, TopicMetadata

RECORD_LIMIT = 1
"""ShareAcquireMode: exactly as many records as max_records allows."""

ATTEMPTS = 100
ARRIVED_WITHIN_S = 0.3
"""Leaders in front of an existing cluster get records with their next Fetch."""


class ScriptedConsumer:
    """A member of `group` that fetches from `partitions` of one topic; ShareFetch v2 in record_limit mode."""

    def __init__(self, client: ClusterClient, group: str, member_id: str, partitions: Sequence[int] = (0,)) -> None:
        self._client = client
        self._group = group
        self._member_id = member_id
        self._partitions = partitions
        self._epoch = 0

    async def join(self, topic: str, metadata: TopicMetadata) -> None:
        """Heartbeats until partitions are assigned."""
        self._metadata = metadata
        epoch = 0
        for _ in range(ATTEMPTS):
            request: Any = heartbeat_request.ShareGroupHeartbeatRequest
            answer = await self._client.call_any(
                request(
                    group_id=self._group,
                    member_id=self._member_id,
                    member_epoch=epoch,
                    subscribed_topic_names=(topic,) if epoch == 0 else None,
                ),
                heartbeat_response.ShareGroupHeartbeatResponse,
            )
            assert answer.error_code == 0, answer
            epoch = answer.member_epoch
            if answer.assignment is not None and answer.assignment.topic_partitions:
                return
            await asyncio.sleep(0.2)
        raise AssertionError(f"{self._member_id} got no partition")

    async def fetch(self, max_records: int, *, max_wait_ms: int = 500) -> list[tuple[int, int, int]]:
        """First offset, last offset and delivery count of each run acquired."""
        module: Any = fetch_request
        partitions = [
            module.FetchPartition(partition_index=index, acknowledgement_batches=()) for index in self._partitions
        ]
        topics = (module.FetchTopic(topic_id=self._metadata.topic_id, partitions=tuple(partitions)),)
        request = module.ShareFetchRequest(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=self._epoch,
            max_wait=milliseconds(max_wait_ms),
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=max_records,
            batch_size=max_records,
            share_acquire_mode=RECORD_LIMIT,
            is_renew_ack=False,
            topics=topics if self._epoch == 0 else (),
            forgotten_topics_data=(),
        )
        answer = await self._call(request, fetch_response.ShareFetchResponse)
        found = [partition for topic in answer.responses for partition in topic.partitions]
        assert all(partition.error_code == 0 for partition in found), answer
        return [
            (run.first_offset, run.last_offset, run.delivery_count)
            for partition in found
            for run in partition.acquired_records
        ]

    async def acknowledge(self, run: Run, kind: int) -> int:
        """The error code of partition 0."""
        module: Any = acknowledge_request
        batch = module.AcknowledgementBatch(first_offset=run[0], last_offset=run[1], acknowledge_types=(kind,))
        partition = module.AcknowledgePartition(partition_index=0, acknowledgement_batches=(batch,))
        topic = module.AcknowledgeTopic(topic_id=self._metadata.topic_id, partitions=(partition,))
        request = module.ShareAcknowledgeRequest(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=self._epoch,
            is_renew_ack=False,
            topics=(topic,),
        )
        answer = await self._call(request, acknowledge_response.ShareAcknowledgeResponse)
        return int(answer.responses[0].partitions[0].error_code)

    async def _call(self, request: Any, response_type: Any) -> Any:
        answer = await self._client.at(self._metadata.leaders[0]).call(request, response_type)
        assert answer.error_code == 0, answer
        self._epoch += 1
        return answer


class ScriptedTopic:
    """A topic of a scenario, on either engine: records go to what has the logs, consumers to the gateways."""

    def __init__(self, cluster: Cluster, name: str, partitions: int = 1) -> None:
        self.name = name
        self._partitions = partitions
        self._gateways = Admin(cluster.client("admin"))
        self._is_kafka = cluster.shape.engine == KAFKA
        self._log_client = cluster.log_client("log-admin" if self._is_kafka else "admin")
        self._logs: TopicMetadata | None = None

    async def create(self) -> TopicMetadata:
        """What gateways say of the topic; it is there already when this is called again."""
        self._logs = await Admin(self._log_client).create_topic(self.name, self._partitions)
        return await self._gateways.create_topic(self.name, self._partitions)

    async def produce(self, values: Sequence[str], partition: int = 0) -> int:
        """One batch to a partition; its base offset. Leaders have the records then."""
        assert self._logs is not None
        base_offset = await produce(self._log_client, self.name, self._logs, values, partition)
        if self._is_kafka:
            await asyncio.sleep(ARRIVED_WITHIN_S)
        return base_offset


async def produce(
    client: ClusterClient, topic: str, metadata: TopicMetadata, values: Sequence[str], partition: int = 0
) -> int:
    """One batch without a producer id; its base offset."""
    base_offset = await produce_to(client, topic, metadata, values, partition)
    assert base_offset is not None, "it was refused"
    return base_offset


async def produce_to(
    client: ClusterClient, topic: str, metadata: TopicMetadata, values: Sequence[str], partition: int = 0
) -> int | None:
    """One batch without a producer id; its base offset, None where it was refused. ConnectionLost."""
    if partition not in metadata.leaders:
        return None
    module: Any = produce_request
    records = build_batch(values, timestamp_ms=EPOCH_MS + int(client.now() * 1000))
    part = module.PartitionProduceData(index=partition, records=records)
    data = module.TopicProduceData(name=topic, partition_data=(part,))
    request = module.ProduceRequest(acks=-1, timeout=milliseconds(5_000), topic_data=(data,))
    answer: Any = await client.at(metadata.leaders[partition]).call(request, produce_response.ProduceResponse)
    result = answer.responses[0].partition_responses[0]
    return None if result.error_code else int(result.base_offset)
