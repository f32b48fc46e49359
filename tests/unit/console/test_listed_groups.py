"""The console lists share groups only: it has no page for a group of ordinary consumers."""

from __future__ import annotations

import asyncio

from kshare_console.cluster_client import LIST_GROUPS, ClusterClient
from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings
from kshare_wire.framing import parse_header
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.requests.list_groups import ListGroupsRequest
from kshare_wire.generated.responses.list_groups import ListedGroup, ListGroupsResponse
from kshare_wire.messages import decode_request, is_flexible
from support.upstream.scripted_broker import ScriptedBroker

GROUPS = {"billing": "share", "reports": "consumer", "old": "classic", "audit": "share"}


def listed(version: int, frame: bytes) -> ListGroupsResponse:
    """What a broker answers: the groups of the types that the request names, or all."""
    view = memoryview(frame)
    head = parse_header(view, flexible=is_flexible(ListGroupsRequest.API_KEY, version))
    types = decode_request(ListGroupsRequest, version, view, head.body_offset).types_filter
    found = [ListedGroup(group_id=name, group_type=kind) for name, kind in GROUPS.items() if not types or kind in types]
    return ListGroupsResponse(groups=found)


async def listed_by_console() -> list[str]:
    async with ScriptedBroker() as broker:
        broker.served[ApiKey.LIST_GROUPS] = LIST_GROUPS
        broker.answers[ApiKey.LIST_GROUPS] = listed
        cluster = Cluster([BrokerAddress("127.0.0.1", broker.port)], ClientSettings())
        try:
            return [group.group_id for group in await ClusterClient(cluster).list_groups()]
        finally:
            await cluster.close()


def test_groups_of_ordinary_consumers_are_not_listed() -> None:
    assert asyncio.run(listed_by_console()) == ["audit", "billing"]
