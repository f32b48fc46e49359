"""The administrator: topics, configs of groups, and reading whole logs at the end."""

from __future__ import annotations

import asyncio
from typing import Any

from kio.schema.create_topics.v7 import request as create_request
from kio.schema.create_topics.v7 import response as create_response
from kio.schema.fetch.v12 import request as fetch_request
from kio.schema.fetch.v12 import response as fetch_response
from kio.schema.incremental_alter_configs.v1 import request as alter_request
from kio.schema.incremental_alter_configs.v1 import response as alter_response

from kshare_core.errors import ErrorCode
from support.simulation.clients import ClusterClient, TopicMetadata
from support.simulation.connections import ConnectionLost
from support.simulation.kafka import ReadRecord, milliseconds, read_batches

CreateTopicsRequest: Any = create_request.CreateTopicsRequest
CreatableTopic: Any = create_request.CreatableTopic
FetchRequest: Any = fetch_request.FetchRequest
FetchTopic: Any = fetch_request.FetchTopic
FetchPartition: Any = fetch_request.FetchPartition
IncrementalAlterConfigsRequest: Any = alter_request.IncrementalAlterConfigsRequest
AlterConfigsResource: Any = alter_request.AlterConfigsResource
AlterableConfig: Any = alter_request.AlterableConfig

GROUP_RESOURCE = 32
RETRY_S = 0.3
ATTEMPTS = 200


class Admin:
    """Tries again until the cluster does what it is asked, `ATTEMPTS` times at most."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    async def create_topic(self, name: str, partitions: int) -> TopicMetadata:
        """Returns when the metadata knows a leader of every partition."""
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=())
        request = CreateTopicsRequest(topics=(topic,), timeout=milliseconds(10_000))
        for _ in range(ATTEMPTS):
            try:
                answer = await self._client.call_any(request, create_response.CreateTopicsResponse)
                code = answer.topics[0].error_code
                if code in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
                    metadata = await self._client.metadata(name)
                    if metadata is not None and len(metadata.leaders) == partitions:
                        return metadata
                else:
                    self._client.note(f"CreateTopics: {code!r} {answer.topics[0].error_message}")
            except ConnectionLost as problem:
                self._client.note(f"CreateTopics: {problem}")
            await asyncio.sleep(RETRY_S)
        raise AssertionError(f"topic {name} could not be created")

    async def set_group_configs(self, group: str, configs: dict[str, str]) -> None:
        entries = tuple(AlterableConfig(name=name, config_operation=0, value=value) for name, value in configs.items())
        resource = AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name=group, configs=entries)
        request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
        for _ in range(ATTEMPTS):
            try:
                answer = await self._client.call_any(request, alter_response.IncrementalAlterConfigsResponse)
                if answer.responses[0].error_code == 0:
                    return
                self._client.note(f"IncrementalAlterConfigs: {answer.responses[0]}")
            except ConnectionLost as problem:
                self._client.note(f"IncrementalAlterConfigs: {problem}")
            await asyncio.sleep(RETRY_S)
        raise AssertionError(f"the configs {configs} of group {group} could not be set")

    async def read_log(self, topic: str, partition: int) -> list[ReadRecord]:
        """All records of a partition, by Fetch."""
        records: list[ReadRecord] = []
        next_offset, high_watermark = 0, -1
        for _ in range(ATTEMPTS):
            if next_offset == high_watermark:
                return records
            try:
                found = await self._fetch(topic, partition, next_offset)
            except ConnectionLost:
                found = None
            if found is None or found.error_code != 0:
                await asyncio.sleep(RETRY_S)
                continue
            high_watermark = found.high_watermark
            fresh = [record for record in read_batches(bytes(found.records or b"")) if record.offset >= next_offset]
            records.extend(fresh)
            next_offset = records[-1].offset + 1 if records else next_offset
        raise AssertionError(f"{topic}-{partition} could not be read past {next_offset} of {high_watermark}")

    async def _fetch(self, topic: str, partition: int, offset: int) -> Any:
        metadata = await self._client.metadata(topic)
        if metadata is None or partition not in metadata.leaders:
            return None
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=20_000)
        request = FetchRequest(
            max_wait=milliseconds(100),
            min_bytes=1,
            topics=(FetchTopic(topic=topic, partitions=(wanted,)),),
            forgotten_topics_data=(),
        )
        client = self._client.at(metadata.leaders[partition])
        answer = await client.call(request, fetch_response.FetchResponse)
        return answer.responses[0].partitions[0] if answer.responses else None
