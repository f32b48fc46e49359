"""A gateway among several coordinators: group APIs go to the group's owner; Kafka's codes where there is none."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from kshare_core.configs import process_configs
from kshare_core.errors import ErrorCode
from kshare_gateway.node import GatewayNode
from kshare_gateway.settings import GatewaySettings
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import MEMBER, GatewayClient, environment
from support.rpc.scripted_coordinators import GROUP_PARTITIONS, ScriptedCoordinators, address_of, all_owned_by, group_in
from support.simulation.loop import VirtualLoop

FIRST, SECOND = group_in(0), group_in(1)
TOPICS = [{"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 5}]}]
COMMIT = {"group_id": FIRST, "topics": TOPICS}
TRANSACTION = {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0}

GROUP_REQUESTS: list[tuple[ApiKey, int, dict[str, Any]]] = [
    (ApiKey.OFFSET_COMMIT, 9, COMMIT),
    (ApiKey.OFFSET_FETCH, 1, {"group_id": FIRST, "topics": [{"name": "orders", "partition_indexes": [0]}]}),
    (ApiKey.OFFSET_FETCH, 7, {"group_id": FIRST, "topics": None}),
    (ApiKey.OFFSET_FETCH, 9, {"groups": [{"group_id": FIRST, "topics": None}]}),
    (ApiKey.TXN_OFFSET_COMMIT, 4, {**COMMIT, **TRANSACTION}),
    (ApiKey.OFFSET_DELETE, 0, {"group_id": FIRST, "topics": []}),
    (ApiKey.JOIN_GROUP, 9, {"group_id": FIRST}),
    (ApiKey.SYNC_GROUP, 5, {"group_id": FIRST, "protocol_type": "consumer", "protocol_name": "range"}),
    (ApiKey.HEARTBEAT, 4, {"group_id": FIRST}),
    (ApiKey.LEAVE_GROUP, 1, {"group_id": FIRST}),
    (ApiKey.LEAVE_GROUP, 5, {"group_id": FIRST}),
    (ApiKey.DESCRIBE_GROUPS, 5, {"groups": [FIRST]}),
    (ApiKey.DELETE_GROUPS, 2, {"groups_names": [FIRST]}),
    (ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, {"group_id": FIRST, "member_id": MEMBER}),
    (ApiKey.CONSUMER_GROUP_DESCRIBE, 1, {"group_ids": [FIRST]}),
    (ApiKey.SHARE_GROUP_HEARTBEAT, 1, {"group_id": FIRST, "member_id": MEMBER}),
    (ApiKey.SHARE_GROUP_DESCRIBE, 1, {"group_ids": [FIRST]}),
    (ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, {"groups": [{"group_id": FIRST, "topics": None}]}),
    (ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, {"group_id": FIRST}),
    (ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, {"group_id": FIRST}),
]

ACTIVE_REQUESTS: list[tuple[ApiKey, int, dict[str, Any], ErrorCode]] = [
    (ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": "t"}, ErrorCode.NOT_COORDINATOR),
    (ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": None}, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    (ApiKey.ADD_OFFSETS_TO_TXN, 4, {**TRANSACTION, "group_id": SECOND}, ErrorCode.NOT_COORDINATOR),
    (ApiKey.END_TXN, 4, TRANSACTION, ErrorCode.NOT_COORDINATOR),
    (ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["t"]}, ErrorCode.NOT_COORDINATOR),
    (ApiKey.LIST_TRANSACTIONS, 1, {}, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    (ApiKey.CREATE_TOPICS, 7, {"topics": [{"name": "t"}], "timeout": 9000}, ErrorCode.REQUEST_TIMED_OUT),
    (ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": "t"}], "timeout": 9000}, ErrorCode.REQUEST_TIMED_OUT),
    (
        ApiKey.CREATE_PARTITIONS,
        3,
        {"topics": [{"name": "t", "count": 2, "assignments": None}], "timeout": 9000},
        ErrorCode.REQUEST_TIMED_OUT,
    ),
    (
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        {"resources": [{"resource_type": 2, "resource_name": "t"}]},
        ErrorCode.REQUEST_TIMED_OUT,
    ),
]


def error_codes(answer: Any) -> Iterator[int]:
    """All error codes of an answer, wherever they are."""
    if isinstance(answer, tuple):
        for item in answer:
            yield from error_codes(item)
    elif dataclasses.is_dataclass(answer):
        for field in dataclasses.fields(answer):
            value = getattr(answer, field.name)
            if field.name.endswith("error_code"):
                yield int(value)
            else:
                yield from error_codes(value)


def run(scenario: Callable[[ScriptedCoordinators, GatewayClient], Awaitable[None]], owners: dict[int, int]) -> None:
    """With three coordinators, of which the first is active."""

    async def main() -> None:
        cluster = ScriptedCoordinators(1, 2, 3)
        cluster.owners = owners
        await cluster.start()
        settings = GatewaySettings(
            node_id=7,
            client_listen="",
            advertised_host="gateway",
            advertised_port=9092,
            coordinator_address=",".join(map(address_of, cluster.nodes)),
            configs=process_configs({})[0],
        )
        node = GatewayNode(environment=environment(), network=cluster.network, settings=settings)
        await node.start()
        await scenario(cluster, GatewayClient(node))
        await node.stop(100)

    VirtualLoop(time_limit=600).run(main())


def all_calls(cluster: ScriptedCoordinators, node_id: int) -> list[str]:
    return [name for name, _ in cluster[node_id].calls if name not in ("RegisterNode", "WatchCatalog")]


@pytest.mark.parametrize(("api", "version", "values"), GROUP_REQUESTS, ids=lambda each: getattr(each, "name", None))
def test_a_groups_owner_is_asked_and_its_refusal_is_kafkas(api: ApiKey, version: int, values: dict[str, Any]) -> None:
    async def scenario(cluster: ScriptedCoordinators, client: GatewayClient) -> None:
        cluster[2].refusals_left = 10_000
        answer = await client.ask(api, version, **values)
        assert set(error_codes(answer)) - {ErrorCode.NONE} == {ErrorCode.NOT_COORDINATOR}
        assert len(all_calls(cluster, 2)) > 3
        assert (all_calls(cluster, 1), all_calls(cluster, 3)) == ([], [])

    run(scenario, all_owned_by(2, 3))


@pytest.mark.parametrize(("api", "version", "values"), GROUP_REQUESTS, ids=lambda each: getattr(each, "name", None))
def test_a_group_without_an_owner(api: ApiKey, version: int, values: dict[str, Any]) -> None:
    async def scenario(cluster: ScriptedCoordinators, client: GatewayClient) -> None:
        answer = await client.ask(api, version, **values)
        assert ErrorCode.COORDINATOR_NOT_AVAILABLE in set(error_codes(answer))
        assert [all_calls(cluster, node_id) for node_id in (1, 2, 3)] == [[], [], []]

    run(scenario, {1: 2})


@pytest.mark.parametrize(
    ("api", "version", "values", "code"), ACTIVE_REQUESTS, ids=lambda each: getattr(each, "name", None)
)
def test_the_active_one_is_asked_and_its_refusal_is_kafkas(
    api: ApiKey, version: int, values: dict[str, Any], code: ErrorCode
) -> None:
    async def scenario(cluster: ScriptedCoordinators, client: GatewayClient) -> None:
        cluster[1].refusals_left = 10_000
        answer = await client.ask(api, version, **values)
        assert set(error_codes(answer)) - {ErrorCode.NONE} == {code}
        assert len(all_calls(cluster, 1)) > 3
        assert (all_calls(cluster, 2), all_calls(cluster, 3)) == ([], [])

    run(scenario, all_owned_by(2, 3))


def test_groups_of_several_coordinators_in_one_request() -> None:
    async def scenario(cluster: ScriptedCoordinators, client: GatewayClient) -> None:
        for node in cluster.nodes.values():

            def fetch(request: Any, node: Any = node) -> pb.OffsetFetchResponse:
                offset = pb.CommittedOffset(topic_name="orders", committed_offset=node.node_id)
                return pb.OffsetFetchResponse(results=[pb.OffsetFetchResponse.Result(offset=offset)])

            def delete(request: Any) -> pb.DeleteGroupsResponse:
                results = [pb.DeleteGroupsResponse.Result(group_id=group_id) for group_id in request.group_ids]
                return pb.DeleteGroupsResponse(results=results)

            node.answers |= {"OffsetFetch": fetch, "DeleteGroups": delete}
        names = [group_in(partition) for partition in (1, 0, 3, 2)]
        groups = [{"group_id": name, "topics": None} for name in names]
        answer = await client.ask(ApiKey.OFFSET_FETCH, 9, groups=groups)
        found = [(group.group_id, group.topics[0].partitions[0].committed_offset) for group in answer.groups]
        assert found == [(names[0], 3), (names[1], 2), (names[2], 3), (names[3], 2)]
        answer = await client.ask(ApiKey.DELETE_GROUPS, 2, groups_names=[*names, names[0]])
        assert [result.group_id for result in answer.results] == names
        assert [all_calls(cluster, node_id).count("DeleteGroups") for node_id in (1, 2, 3)] == [0, 1, 1]
        await cluster[3].go_away()
        answer = await client.ask(ApiKey.OFFSET_FETCH, 9, groups=groups)
        codes = [int(group.error_code) for group in answer.groups]
        assert codes == [ErrorCode.COORDINATOR_NOT_AVAILABLE, 0, ErrorCode.COORDINATOR_NOT_AVAILABLE, 0]

    run(scenario, all_owned_by(2, 3))


def test_list_groups_is_whole_or_an_error() -> None:
    async def scenario(cluster: ScriptedCoordinators, client: GatewayClient) -> None:
        for node in cluster.nodes.values():

            def list_groups(request: Any, node: Any = node) -> pb.ListGroupsResponse:
                own = [each for each in range(GROUP_PARTITIONS) if cluster.owners.get(each) == node.node_id]
                groups = [pb.ListGroupsResponse.ListedGroup(group_id=f"at-{each}") for each in own]
                return pb.ListGroupsResponse(groups=groups, group_partitions=own)

            node.answers["ListGroups"] = list_groups
        answer = await client.ask(ApiKey.LIST_GROUPS, 5)
        assert sorted(group.group_id for group in answer.groups) == sorted(f"at-{each}" for each in range(50))
        await cluster[3].go_away()
        answer = await client.ask(ApiKey.LIST_GROUPS, 5)
        assert (int(answer.error_code), answer.groups) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, ())

    run(scenario, all_owned_by(2, 3))


def test_a_client_that_waits_in_a_join_gets_its_answer_after_a_takeover() -> None:
    async def scenario(cluster: ScriptedCoordinators, client: GatewayClient) -> None:
        def join(request: Any) -> pb.JoinGroupResponse:
            return pb.JoinGroupResponse(generation_id=5, member_id="m")

        cluster[3].answers["JoinGroup"] = join
        cluster[2].refusals_left = 10_000
        waiting = client.send(ApiKey.JOIN_GROUP, 9, group_id=FIRST)
        await asyncio.sleep(1)
        cluster.change(owners=all_owned_by(3))
        answer = await asyncio.wait_for(waiting, 1)
        assert (int(answer.error_code), answer.generation_id) == (0, 5)

    run(scenario, all_owned_by(2))
