"""Topics with their partitions and configs."""

from __future__ import annotations

import asyncio
import base64

from kshare_console.cluster_client import TOPIC_CONFIGS, ClusterClient
from kshare_console.views.groups import config
from kshare_console.views.paging import Json, PageRequest, listing, page_of
from kshare_upstream.partition_log import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from kshare_wire.generated.responses.metadata import MetadataResponseTopic

NO_LEADER = -1


async def topics(client: ClusterClient, asked: PageRequest) -> Json:
    """A page of the topics that the user may describe, by name."""
    found, next_key, total = page_of([(str(topic.name), topic) for topic in await client.topics()], asked)
    return listing([_summary(topic) for topic in found], next_key, total)


def _summary(topic: MetadataResponseTopic) -> Json:
    return {
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "replication": max((len(each.replica_nodes) for each in topic.partitions), default=0),
        "internal": topic.is_internal,
        "offline": sum(each.leader_id == NO_LEADER for each in topic.partitions),
    }


async def topic(client: ClusterClient, name: str) -> Json:
    """One topic with the offsets of its partitions; Refusal."""
    found = await client.topic(name)
    numbers = sorted(each.partition_index for each in found.partitions)
    starts, ends, configs = await asyncio.gather(
        client.end_offsets(name, numbers, EARLIEST_TIMESTAMP),
        client.end_offsets(name, numbers, LATEST_TIMESTAMP),
        client.configs(TOPIC_CONFIGS, [name]),
    )
    return {
        "topic": name,
        "topic_id": base64.urlsafe_b64encode(found.topic_id).decode().rstrip("="),
        "internal": found.is_internal,
        "partitions": [
            {
                "partition": each.partition_index,
                "leader": None if each.leader_id == NO_LEADER else each.leader_id,
                "start_offset": starts.get(each.partition_index),
                "end_offset": ends.get(each.partition_index),
                "epoch": each.leader_epoch,
            }
            for each in sorted(found.partitions, key=lambda each: each.partition_index)
        ],
        "configs": [config(each) for each in sorted(configs.get(name, ()), key=lambda each: each.name)],
    }
