"""ListGroups and DeleteGroups of mode proxy: the groups of kshare, and the cluster's save its share groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings
from kshare_wire.api_versions import VersionRange
from kshare_wire.framing import parse_header
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.requests.delete_groups import DeleteGroupsRequest
from kshare_wire.generated.responses.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from kshare_wire.generated.responses.describe_groups import DescribedGroup, DescribeGroupsResponse
from kshare_wire.generated.responses.list_groups import ListedGroup, ListGroupsResponse
from kshare_wire.generated.responses.metadata import MetadataResponse
from kshare_wire.generated.responses.share_group_describe import DescribedGroup as DescribedShareGroup
from kshare_wire.generated.responses.share_group_describe import ShareGroupDescribeResponse
from kshare_wire.messages import decode_request
from support.gateway.harness import GatewayHarness
from support.upstream.scripted_broker import ScriptedBroker

EVERYTHING = (1 << 13) - 1
OF_CLUSTER = {"native": ("share", "Share"), "new": ("consumer", "Consumer"), "old": ("consumer", "Classic")}
"""Protocol type and type of the cluster's groups."""
OWN = "own"
Scenario = Callable[[GatewayHarness, ScriptedBroker], Awaitable[None]]


def run(scenario: Scenario, *, has_share_groups: bool = True) -> None:
    """Runs a scenario with a gateway in mode proxy; the cluster lets the client do everything."""

    def metadata(broker: ScriptedBroker) -> MetadataResponse:
        answer = broker.metadata()
        answer.cluster_authorized_operations = EVERYTHING
        return answer

    def listed(request: pb.ListGroupsRequest, payload: memoryview) -> pb.ListGroupsResponse:
        is_wanted = not request.types_filter or "share" in request.types_filter
        group = pb.ListGroupsResponse.ListedGroup(group_id=OWN, protocol_type="share", group_type="share")
        return pb.ListGroupsResponse(groups=[group] if is_wanted else [])

    async def whole() -> None:
        async with ScriptedBroker() as broker:
            broker.answers[ApiKey.METADATA] = lambda version, frame: metadata(broker)
            if has_share_groups:
                broker.served[ApiKey.SHARE_GROUP_DESCRIBE] = VersionRange(1, 1)
            configs = {
                "kshare.engine": "kafka",
                "kshare.upstream.mode": "proxy",
                "kshare.upstream.bootstrap.servers": broker.address,
            }
            address = BrokerAddress("127.0.0.1", broker.port)
            harness = GatewayHarness(
                configs,
                client_listen="127.0.0.1:0",
                open_upstream=lambda: Cluster([address], ClientSettings()),
            )
            harness.catalog.answers["ListGroups"] = listed
            async with harness:
                await asyncio.wait_for(scenario(harness, broker), 20)

    asyncio.run(whole())


def cluster_groups(version: int) -> ListGroupsResponse:
    return ListGroupsResponse(
        groups=[
            ListedGroup(group_id=group_id, protocol_type=protocol_type, group_type=group_type if version >= 5 else "")
            for group_id, (protocol_type, group_type) in OF_CLUSTER.items()
        ]
    )


@pytest.mark.parametrize(
    ("version", "types", "listed"),
    [
        (5, [], {OWN, "new", "old"}),
        (5, ["share"], {OWN}),
        (5, ["share", "consumer"], {OWN, "new", "old"}),
        (5, ["consumer"], {"new", "old"}),
        (4, None, {OWN, "new", "old"}),
        (0, None, {OWN, "new", "old"}),
    ],
)
def test_share_groups_of_the_cluster_are_not_listed(version: int, types: list[str] | None, listed: set[str]) -> None:
    """The scripted broker does not filter by type."""

    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        broker.answers[ApiKey.LIST_GROUPS] = lambda asked_in, frame: cluster_groups(asked_in)
        filters = {} if types is None else {"types_filter": types}
        answer = await harness.client().ask(ApiKey.LIST_GROUPS, version, **filters)
        assert answer.error_code == ErrorCode.NONE
        assert {group.group_id for group in answer.groups} == listed

    run(scenario)


@pytest.mark.parametrize(
    ("described", "code"),
    [
        (None, ErrorCode.NONE),
        (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.NONE),
        (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.NONE),
        (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_ID_NOT_FOUND),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_share_groups_of_the_cluster_are_not_deleted(described: ErrorCode | None, code: ErrorCode) -> None:
    """`described` is the cluster's answer to ShareGroupDescribe; None where it does not serve that."""

    def deleted(version: int, frame: bytes) -> DeleteGroupsResponse:
        start = parse_header(memoryview(frame), flexible=version >= 2).body_offset
        asked = decode_request(DeleteGroupsRequest, version, memoryview(frame), start)
        return DeleteGroupsResponse(results=[DeletableGroupResult(group_id=each) for each in asked.groups_names])

    def deleted_here(request: pb.DeleteGroupsRequest, payload: memoryview) -> pb.DeleteGroupsResponse:
        codes = {group_id: 0 if group_id == OWN else ErrorCode.GROUP_ID_NOT_FOUND for group_id in request.group_ids}
        result = pb.DeleteGroupsResponse.Result
        return pb.DeleteGroupsResponse(results=[result(group_id=each, error_code=code) for each, code in codes.items()])

    async def scenario(harness: GatewayHarness, broker: ScriptedBroker) -> None:
        harness.catalog.answers["DeleteGroups"] = deleted_here
        broker.answers[ApiKey.DELETE_GROUPS] = deleted
        broker.answers[ApiKey.DESCRIBE_GROUPS] = lambda version, frame: DescribeGroupsResponse(
            groups=[DescribedGroup(authorized_operations=EVERYTHING)]
        )
        groups = {"native": described or ErrorCode.NONE, "new": ErrorCode.GROUP_ID_NOT_FOUND}
        broker.answers[ApiKey.SHARE_GROUP_DESCRIBE] = lambda version, frame: ShareGroupDescribeResponse(
            groups=[DescribedShareGroup(group_id=each, error_code=error) for each, error in groups.items()]
        )
        answer = await harness.client().ask(ApiKey.DELETE_GROUPS, 2, groups_names=[OWN, "native", "new"])
        assert {each.group_id: int(each.error_code) for each in answer.results} == {OWN: 0, "native": code, "new": 0}
        (frame,) = broker.received(ApiKey.DELETE_GROUPS)
        assert (b"native" in frame) == (code == ErrorCode.NONE)

    run(scenario, has_share_groups=described is not None)
