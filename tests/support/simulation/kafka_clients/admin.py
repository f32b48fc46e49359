"""The administrator: topics, configs of groups, deleting records, and reading whole logs at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from kio.schema.create_topics.v7 import request as create_request
from kio.schema.create_topics.v7 import response as create_response
from kio.schema.delete_records.v2 import request as delete_request
from kio.schema.delete_records.v2 import response as delete_response
from kio.schema.delete_topics.v5 import request as delete_topics_request
from kio.schema.delete_topics.v5.response import DeleteTopicsResponse
from kio.schema.fetch.v12 import request as fetch_request
from kio.schema.fetch.v12 import response as fetch_response
from kio.schema.incremental_alter_configs.v1 import request as alter_request
from kio.schema.incremental_alter_configs.v1 import response as alter_response
from kio.schema.list_offsets.v7 import request as list_request
from kio.schema.list_offsets.v7 import response as list_response

from kshare_core.errors import ErrorCode
from support.simulation.connections import ConnectionLost
from support.simulation.kafka_clients.protocol import ReadRecord, milliseconds, read_part
from support.simulation.kafka_clients.session import ClusterClient, TopicMetadata

CreateTopicsRequest: Any = create_request.CreateTopicsRequest
CreatableTopic: Any = create_request.CreatableTopic
CreatableTopicConfig: Any = create_request.CreatableTopicConfig
DeleteRecordsRequest: Any = delete_request.DeleteRecordsRequest
DeleteRecordsTopic: Any = delete_request.DeleteRecordsTopic
DeleteRecordsPartition: Any = delete_request.DeleteRecordsPartition
DeleteTopicsRequest: Any = delete_topics_request.DeleteTopicsRequest
ListOffsetsRequest: Any = list_request.ListOffsetsRequest
ListOffsetsTopic: Any = list_request.ListOffsetsTopic
ListOffsetsPartition: Any = list_request.ListOffsetsPartition
FetchRequest: Any = fetch_request.FetchRequest
FetchTopic: Any = fetch_request.FetchTopic
FetchPartition: Any = fetch_request.FetchPartition
IncrementalAlterConfigsRequest: Any = alter_request.IncrementalAlterConfigsRequest
AlterConfigsResource: Any = alter_request.AlterConfigsResource
AlterableConfig: Any = alter_request.AlterableConfig

TOPIC_RESOURCE, GROUP_RESOURCE = 2, 32
EARLIEST, LATEST = -2, -1
READ_COMMITTED = 1
RETRY_S = 0.3
TOPIC_IS_KNOWN_S = 40.0
"""Longer than a full link lasts, and than a gateway waits for the answer to a watch of the catalog that was lost."""
ATTEMPTS = 200


class LogContents(NamedTuple):
    """A partition's log; `end_offset` is the offset after the last one, which may be a marker's."""

    start_offset: int
    end_offset: int
    records: list[ReadRecord]
    markers: list[int]
    """The offsets of control records."""


class Admin:
    """Tries again until the cluster does what it is asked, `ATTEMPTS` times at most."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    async def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str] = MappingProxyType({}), *, replicas: int = 1
    ) -> TopicMetadata:
        """Returns when the metadata knows a leader of every partition."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replicas,
            assignments=(),
            configs=tuple(CreatableTopicConfig(name=name, value=value) for name, value in configs.items()),
        )
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

    async def delete_topic(self, name: str) -> None:
        request = DeleteTopicsRequest(topic_names=(name,), timeout=milliseconds(10_000))
        answer = await self._client.call_any(request, DeleteTopicsResponse)
        assert answer.responses[0].error_code == 0, f"topic {name} could not be deleted: {answer.responses[0]}"

    async def set_group_configs(self, group: str, configs: dict[str, str]) -> None:
        await self._set_configs(GROUP_RESOURCE, group, configs)

    async def set_topic_configs(self, topic: str, configs: dict[str, str]) -> None:
        await self._set_configs(TOPIC_RESOURCE, topic, configs)

    async def _set_configs(self, kind: int, name: str, configs: dict[str, str]) -> None:
        entries = tuple(AlterableConfig(name=name, config_operation=0, value=value) for name, value in configs.items())
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=entries)
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
        raise AssertionError(f"the configs {configs} of {name} could not be set")

    async def read_log(self, topic: str, partition: int) -> list[ReadRecord]:
        """All records of a partition."""
        return (await self.read_whole_log(topic, partition)).records

    async def read_whole_log(self, topic: str, partition: int) -> LogContents:
        """By Fetch with isolation level read_committed; waits for open transactions."""
        records: list[ReadRecord] = []
        markers: list[int] = []
        start_offset, next_offset, high_watermark = -1, 0, -1
        for _ in range(ATTEMPTS):
            if next_offset == high_watermark:
                return LogContents(start_offset, next_offset, records, markers)
            if start_offset == -1:
                start_offset = next_offset = await self.offset(topic, partition, EARLIEST)
            try:
                found = await self._fetch(topic, partition, next_offset)
            except ConnectionLost:
                found = None
            if found is not None and found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                start_offset = -1
                records.clear()
                markers.clear()
            if found is None or found.error_code != 0:
                await asyncio.sleep(RETRY_S)
                continue
            high_watermark = found.high_watermark
            aborted = [(entry.producer_id, entry.first_offset) for entry in found.aborted_transactions or ()]
            part = read_part(bytes(found.records or b""), aborted)
            records.extend(record for record in part.records if record.offset >= next_offset)
            markers.extend(offset for offset in part.markers if offset >= next_offset)
            next_offset = max(next_offset, part.next_offset)
            if found.last_stable_offset < high_watermark:
                await asyncio.sleep(RETRY_S)
        raise AssertionError(f"{topic}-{partition} could not be read past {next_offset} of {high_watermark}")

    async def offset(self, topic: str, partition: int, timestamp: int) -> int:
        """What ListOffsets answers: `timestamp` is EARLIEST or LATEST."""
        wanted = ListOffsetsTopic(
            name=topic, partitions=(ListOffsetsPartition(partition_index=partition, timestamp=timestamp),)
        )
        request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=(wanted,))
        for _ in range(ATTEMPTS):
            answer = await self._ask_leader(topic, partition, request, list_response.ListOffsetsResponse)
            if answer is not None and answer.topics[0].partitions[0].error_code == 0:
                return int(answer.topics[0].partitions[0].offset)
            await asyncio.sleep(RETRY_S)
        raise AssertionError(f"{topic}-{partition} does not say its offset {timestamp}")

    async def delete_records(self, topic: str, partition: int, offset: int) -> int | None:
        """The low watermark; None where the answer is lost or an error: it may be done or not."""
        wanted = DeleteRecordsTopic(
            name=topic, partitions=(DeleteRecordsPartition(partition_index=partition, offset=offset),)
        )
        request = DeleteRecordsRequest(topics=(wanted,), timeout=milliseconds(5_000))
        answer = await self._ask_leader(topic, partition, request, delete_response.DeleteRecordsResponse)
        if answer is None:
            return None
        result = answer.topics[0].partitions[0]
        return int(result.low_watermark) if result.error_code == 0 else None

    async def partition_count(self, topic: str) -> int:
        """0 where there is no such topic, as far as the gateway knows that answers."""
        for _ in range(ATTEMPTS):
            try:
                return await self._client.partition_count(topic)
            except ConnectionLost:
                await asyncio.sleep(RETRY_S)
        raise AssertionError(f"nobody says whether there is a topic {topic}")

    async def shows(self, topic: str, *, exists: bool) -> bool:
        """Whether a topic is there, or is not; a gateway may know of a change up to `TOPIC_IS_KNOWN_S` later."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TOPIC_IS_KNOWN_S
        while bool(await self.partition_count(topic)) != exists:
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(RETRY_S)
        return True

    async def _ask_leader(self, topic: str, partition: int, request: Any, response_type: Any) -> Any:
        """None where the leader is not known or does not answer."""
        try:
            metadata = await self._client.metadata(topic)
            if metadata is None or partition not in metadata.leaders:
                return None
            return await self._client.at(metadata.leaders[partition]).call(request, response_type)
        except ConnectionLost:
            return None

    async def _fetch(self, topic: str, partition: int, offset: int) -> Any:
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=20_000)
        request = FetchRequest(
            max_wait=milliseconds(100),
            min_bytes=1,
            isolation_level=READ_COMMITTED,
            topics=(FetchTopic(topic=topic, partitions=(wanted,)),),
            forgotten_topics_data=(),
        )
        answer = await self._ask_leader(topic, partition, request, fetch_response.FetchResponse)
        return answer.responses[0].partitions[0] if answer is not None and answer.responses else None
