"""Requests about share groups and topics that an administrator sends once, and what became of them.

None stands for an outcome that nobody knows: there was no answer, or one of a role that is not there. The request may
take effect later.
"""

from __future__ import annotations

from typing import Any

from kio.schema.alter_share_group_offsets.v0 import request as alter_request
from kio.schema.alter_share_group_offsets.v0 import response as alter_response
from kio.schema.create_topics.v7 import request as create_request
from kio.schema.create_topics.v7 import response as create_response
from kio.schema.delete_groups.v2 import request as delete_groups_request
from kio.schema.delete_groups.v2 import response as delete_groups_response
from kio.schema.delete_share_group_offsets.v0 import request as delete_offsets_request
from kio.schema.delete_share_group_offsets.v0 import response as delete_offsets_response
from kio.schema.delete_topics.v5 import request as delete_topics_request
from kio.schema.delete_topics.v5 import response as delete_topics_response
from kio.schema.describe_configs.v4 import request as configs_request
from kio.schema.describe_configs.v4 import response as configs_response
from kio.schema.describe_share_group_offsets.v1 import request as describe_request
from kio.schema.describe_share_group_offsets.v1 import response as describe_response

from kshare_core.errors import ErrorCode
from support.simulation.connections import ConnectionLost
from support.simulation.kafka_clients.admin import GROUP_RESOURCE
from support.simulation.kafka_clients.forger import NOT_READY
from support.simulation.kafka_clients.protocol import milliseconds
from support.simulation.kafka_clients.session import ClusterClient

UNKNOWN_OUTCOME = (
    *NOT_READY,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
ABSENT = -1
"""The start offset of a share-partition without state."""


class ShareGroupAdmin:
    """See the module's text."""

    def __init__(self, client: ClusterClient, topic: str) -> None:
        self._client = client
        self._topic = topic

    async def _call(self, request: Any, response_type: Any) -> Any:
        try:
            return await self._client.call_any(request, response_type)
        except ConnectionLost as problem:
            self._client.note(f"administration: {problem}")
            return None

    def _known(self, what: str, *codes: int) -> int | None:
        """The first error, 0 where there is none."""
        code = next((int(code) for code in codes if code), 0)
        self._client.note(f"{what}: {ErrorCode(code).name}")
        return None if code in UNKNOWN_OUTCOME else code

    async def alter(self, group: str, offsets: dict[int, int]) -> int | None:
        module: Any = alter_request
        partitions = tuple(
            module.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
            for index, offset in offsets.items()
        )
        topic = module.AlterShareGroupOffsetsRequestTopic(topic_name=self._topic, partitions=partitions)
        request = module.AlterShareGroupOffsetsRequest(group_id=group, topics=(topic,))
        answer = await self._call(request, alter_response.AlterShareGroupOffsetsResponse)
        if answer is None:
            return None
        codes = [partition.error_code for topic in answer.responses for partition in topic.partitions]
        return self._known(f"AlterShareGroupOffsets of {group} to {offsets}", answer.error_code, *codes)

    async def delete_offsets(self, group: str) -> int | None:
        module: Any = delete_offsets_request
        topic = module.DeleteShareGroupOffsetsRequestTopic(topic_name=self._topic)
        request = module.DeleteShareGroupOffsetsRequest(group_id=group, topics=(topic,))
        answer = await self._call(request, delete_offsets_response.DeleteShareGroupOffsetsResponse)
        if answer is None:
            return None
        codes = [topic.error_code for topic in answer.responses]
        return self._known(f"DeleteShareGroupOffsets of {group}", answer.error_code, *codes)

    async def delete_group(self, group: str) -> int | None:
        request_type: Any = delete_groups_request.DeleteGroupsRequest
        answer = await self._call(request_type(groups_names=(group,)), delete_groups_response.DeleteGroupsResponse)
        return None if answer is None else self._known(f"DeleteGroups of {group}", answer.results[0].error_code)

    async def start_offsets(self, group: str, partitions: int) -> list[int] | None:
        """ABSENT where there is no state; None where nobody says it now."""
        module: Any = describe_request
        topic = module.DescribeShareGroupOffsetsRequestTopic(
            topic_name=self._topic, partitions=tuple(range(partitions))
        )
        of_group = module.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=(topic,))
        request = module.DescribeShareGroupOffsetsRequest(groups=(of_group,))
        answer = await self._call(request, describe_response.DescribeShareGroupOffsetsResponse)
        if answer is None:
            return None
        found = answer.groups[0]
        if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return [ABSENT] * partitions
        parts = [partition for topic in found.topics for partition in topic.partitions]
        if found.error_code or any(part.error_code for part in parts):
            return None
        return [int(part.start_offset) for part in sorted(parts, key=lambda part: part.partition_index)]

    async def group_config(self, group: str, name: str) -> str | None:
        """None where nobody says it now."""
        module: Any = configs_request
        resource = module.DescribeConfigsResource(
            resource_type=GROUP_RESOURCE, resource_name=group, configuration_keys=(name,)
        )
        request = module.DescribeConfigsRequest(resources=(resource,))
        answer = await self._call(request, configs_response.DescribeConfigsResponse)
        if answer is None or answer.results[0].error_code:
            return None
        return next((config.value for config in answer.results[0].configs if config.name == name), None)

    async def create_topic(self, name: str, partitions: int) -> int | None:
        module: Any = create_request
        topic = module.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=()
        )
        request = module.CreateTopicsRequest(topics=(topic,), timeout=milliseconds(5_000))
        answer = await self._call(request, create_response.CreateTopicsResponse)
        return None if answer is None else self._known(f"CreateTopics of {name}", answer.topics[0].error_code)

    async def delete_topic(self, name: str) -> int | None:
        request_type: Any = delete_topics_request.DeleteTopicsRequest
        request = request_type(topic_names=(name,), timeout=milliseconds(5_000))
        answer = await self._call(request, delete_topics_response.DeleteTopicsResponse)
        return None if answer is None else self._known(f"DeleteTopics of {name}", answer.responses[0].error_code)
