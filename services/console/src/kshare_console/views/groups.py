"""The list of groups, and one group with its members, share-partitions and configs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from kshare_console.cluster_client import GROUP_CONFIGS, ClusterClient, ShareOffset
from kshare_console.views.observation import GroupSummary, Snapshot, lag_of
from kshare_console.views.paging import Json, PageRequest, listing, page_of
from kshare_console.views.share_partitions import SharePartitions, held_by_member
from kshare_wire.generated.responses.describe_configs import DescribeConfigsResourceResult
from kshare_wire.generated.responses.share_group_describe import DescribedGroup, Member

FIRST_PAGE = PageRequest()


def groups(snapshot: Snapshot, asked: PageRequest) -> Json:
    """A page of the groups, by id; Refusal if they cannot be read."""
    if snapshot.groups_problem is not None:
        raise snapshot.groups_problem
    found, next_key, total = page_of([(group.group_id, group) for group in snapshot.groups], asked)
    return {**listing([_summary(group) for group in found], next_key, total), "time_ms": snapshot.time_ms}


def _summary(group: GroupSummary) -> Json:
    return {
        "group_id": group.group_id,
        "type": group.kind,
        "state": group.state,
        "members": group.members,
        "lag_records": group.lag_records,
        "in_flight": group.in_flight,
        "topics": list(group.topics),
    }


async def group(client: ClusterClient, share_partitions: SharePartitions, group_id: str) -> Json:
    """One share group, with its first share-partitions; Refusal."""
    described, offsets, configs = await asyncio.gather(
        client.describe_group(group_id),
        client.share_offsets([group_id]),
        client.configs(GROUP_CONFIGS, [group_id]),
    )
    of_group = offsets.get(group_id, [])
    page, readings = await share_partitions.page_with_runs(group_id, of_group, FIRST_PAGE)
    held = held_by_member(readings)
    is_whole = page["next"] is None and all(reading.has_all_runs for reading in readings)
    return {
        "group_id": group_id,
        "state": described.group_state,
        "group_epoch": described.group_epoch,
        "lag_records": lag_of(of_group),
        "members": [_member(member, held if is_whole else None) for member in described.members],
        "share_partitions": page,
        "configs": [config(each) for each in configs.get(group_id, ())],
    }


def clients_of(described: DescribedGroup) -> dict[str, str]:
    """Client ids by member id."""
    return {member.member_id: member.client_id for member in described.members}


def _member(member: Member, held: Mapping[str, int] | None) -> Json:
    return {
        "member_id": member.member_id,
        "client_id": member.client_id,
        "host": member.client_host,
        "member_epoch": member.member_epoch,
        "subscribed_topics": list(member.subscribed_topic_names),
        "assignment": [
            {"topic": each.topic_name, "partitions": sorted(each.partitions)}
            for each in member.assignment.topic_partitions
        ],
        "in_flight": None if held is None else held.get(member.member_id, 0),
    }


DEFAULT_SOURCES = (5,)
"""DescribeConfigsResponse.ConfigSource DEFAULT_CONFIG; a group's own value is DYNAMIC_GROUP_CONFIG."""


def config(entry: DescribeConfigsResourceResult) -> Json:
    return {
        "name": entry.name,
        "value": None if entry.is_sensitive else entry.value,
        "default": entry.config_source in DEFAULT_SOURCES,
        "read_only": entry.read_only,
        "sensitive": entry.is_sensitive,
    }


def by_place(offsets: Sequence[ShareOffset]) -> list[ShareOffset]:
    return sorted(offsets, key=lambda one: (one.topic, one.partition))
