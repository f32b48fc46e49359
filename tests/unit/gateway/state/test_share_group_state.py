"""Keys 83 to 87 at the gateway: each share-partition at the share coordinator that has its state."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import SharePartitionKey, state_partition_of, topic_id_text
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import OTHER_TOPIC_ID, TOPIC_ID, GatewayHarness, run, versions_of

GROUP = "orders-group"
STATE_PARTITIONS = 8
STATE_APIS = [
    ApiKey.INITIALIZE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE,
    ApiKey.WRITE_SHARE_GROUP_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
]
METHODS = {
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: "InitializeShareGroupState",
    ApiKey.READ_SHARE_GROUP_STATE: "ReadShareGroupState",
    ApiKey.WRITE_SHARE_GROUP_STATE: "WriteShareGroupState",
    ApiKey.DELETE_SHARE_GROUP_STATE: "DeleteShareGroupState",
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: "ReadShareGroupStateSummary",
}
FIELDS: dict[ApiKey, dict[str, Any]] = {
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: {"state_epoch": 4, "start_offset": 17},
    ApiKey.READ_SHARE_GROUP_STATE: {"leader_epoch": 3},
    ApiKey.WRITE_SHARE_GROUP_STATE: {"state_epoch": 4, "leader_epoch": 3, "start_offset": 18},
    ApiKey.DELETE_SHARE_GROUP_STATE: {},
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: {"leader_epoch": -1},
}
BATCH = {"first_offset": 20, "last_offset": 29, "delivery_state": 2, "delivery_count": 1}


def owner_of(topic_id: bytes, partition: int) -> int:
    """Share coordinator 5 has the even state partitions, 6 the odd ones."""
    return 5 + state_partition_of(SharePartitionKey(GROUP, topic_id, partition), STATE_PARTITIONS) % 2


PLACES = [(TOPIC_ID, partition) for partition in range(6)] + [(OTHER_TOPIC_ID, partition) for partition in range(3)]


def with_owners(scenario: Callable[[GatewayHarness], Awaitable[None]]) -> None:
    async def whole(harness: GatewayHarness) -> None:
        harness.catalog.state_partition_count = STATE_PARTITIONS
        harness.catalog.state_partition_owners = {number: 5 + number % 2 for number in range(STATE_PARTITIONS)}
        harness.catalog.change()
        await harness.settle()
        await scenario(harness)

    run(whole)


READS = (ApiKey.READ_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY)


def confirmed(api_key: ApiKey) -> Callable[[Any, memoryview], Any]:
    """Answers for all partitions; partition 2 is FENCED_STATE_EPOCH."""

    def answer(request: Any, payload: memoryview) -> Any:
        response = getattr(messages, METHODS[api_key] + "Response")()
        for asked in request.partitions:
            result = response.results.add(topic_id=asked.topic_id, partition=asked.partition)
            if asked.partition == 2:
                result.error_code, result.error_message = ErrorCode.FENCED_STATE_EPOCH, "too old"
            elif api_key == ApiKey.READ_SHARE_GROUP_STATE:
                result.state_epoch, result.start_offset = 4, asked.partition
                result.state_batches.add(**BATCH)
            elif api_key == ApiKey.READ_SHARE_GROUP_STATE_SUMMARY:
                result.state_epoch, result.leader_epoch, result.start_offset = 4, 3, asked.partition
                result.delivery_complete_count = 9
        return response

    return answer


def script(harness: GatewayHarness, api_key: ApiKey) -> None:
    for share_coordinator in harness.share_coordinators.values():
        share_coordinator.answers[METHODS[api_key]] = confirmed(api_key)


def wanted(api_key: ApiKey, places: list[tuple[bytes, int]]) -> list[dict[str, Any]]:
    """The places of a request in their order; a new topic entry wherever the topic changes."""
    topics: list[dict[str, Any]] = []
    for topic_id, partition in places:
        if not topics or topics[-1]["topic_id"] != topic_id:
            topics.append({"topic_id": topic_id, "partitions": []})
        entry = {"partition": partition, **FIELDS[api_key]}
        if api_key == ApiKey.WRITE_SHARE_GROUP_STATE:
            entry["state_batches"] = [BATCH]
        topics[-1]["partitions"].append(entry)
    return topics


def results(answer: Any) -> list[tuple[bytes, Any]]:
    return [(topic.topic_id.bytes, partition) for topic in answer.results for partition in topic.partitions]


@pytest.mark.parametrize(("api_key", "version"), [(key, version) for key in STATE_APIS for version in versions_of(key)])
def test_each_share_coordinator_is_asked_once_for_its_share_partitions(api_key: ApiKey, version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        script(harness, api_key)
        answer = await harness.client().ask(api_key, version, group_id=GROUP, topics=wanted(api_key, PLACES))
        found = results(answer)
        assert [(topic_id, result.partition) for topic_id, result in found] == PLACES
        for _, result in found:
            fenced = result.partition == 2
            assert result.error_code == (ErrorCode.FENCED_STATE_EPOCH if fenced else ErrorCode.NONE)
            assert result.error_message == ("too old" if fenced else None)
        for node_id, share_coordinator in harness.share_coordinators.items():
            (asked,) = share_coordinator.requests(METHODS[api_key])
            assert asked.group_id == GROUP
            places = [(each.topic_id, each.partition) for each in asked.partitions]
            assert places == [place for place in PLACES if owner_of(*place) == node_id]
            assert len(places) >= 2
            for each in asked.partitions:
                assert {name: getattr(each, name) for name in FIELDS[api_key]} == FIELDS[api_key]
                assert getattr(each, "owner_epoch", 0) == (1 if api_key in READS else 0), "as in the catalog"

    with_owners(scenario)


@pytest.mark.parametrize(("version", "count"), [(0, -1), (1, 7)])
def test_a_write_has_its_batches_and_since_version_1_what_is_complete(version: int, count: int) -> None:
    api_key = ApiKey.WRITE_SHARE_GROUP_STATE

    async def scenario(harness: GatewayHarness) -> None:
        script(harness, api_key)
        topics = wanted(api_key, PLACES[:1])
        if version:
            topics[0]["partitions"][0]["delivery_complete_count"] = count
        await harness.client().ask(api_key, version, group_id=GROUP, topics=topics)
        (asked,) = harness.share_coordinators[owner_of(*PLACES[0])].requests(METHODS[api_key])
        (partition,) = asked.partitions
        assert partition.delivery_complete_count == count
        assert list(partition.state_batches) == [messages.StateBatch(**BATCH)]

    with_owners(scenario)


def test_a_read_has_the_state() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        script(harness, ApiKey.READ_SHARE_GROUP_STATE)
        topics = wanted(ApiKey.READ_SHARE_GROUP_STATE, [(TOPIC_ID, 1)])
        answer = await harness.client().ask(ApiKey.READ_SHARE_GROUP_STATE, 0, group_id=GROUP, topics=topics)
        ((_, result),) = results(answer)
        assert (result.state_epoch, result.start_offset) == (4, 1)
        (batch,) = result.state_batches
        assert (batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count) == (20, 29, 2, 1)

    with_owners(scenario)


@pytest.mark.parametrize("version", [0, 1])
def test_a_summary_has_what_is_complete_since_version_1(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        script(harness, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY)
        topics = wanted(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, [(TOPIC_ID, 1), (TOPIC_ID, 2)])
        client = harness.client()
        answer = await client.ask(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, version, group_id=GROUP, topics=topics)
        (_, result), (_, fenced) = results(answer)
        assert (result.state_epoch, result.leader_epoch, result.start_offset) == (4, 3, 1)
        if version:
            assert (result.delivery_complete_count, fenced.delivery_complete_count) == (9, -1)

    with_owners(scenario)


@pytest.mark.parametrize("api_key", STATE_APIS)
def test_state_without_an_owner_is_not_coordinator_and_the_rest_is_answered(api_key: ApiKey) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        script(harness, api_key)
        del harness.catalog.share_coordinators[6]
        harness.catalog.change()
        await harness.settle()
        answer = await harness.client().ask(api_key, 0, group_id=GROUP, topics=wanted(api_key, PLACES))
        for topic_id, result in results(answer):
            is_nobodys = owner_of(topic_id, result.partition) == 6
            assert (result.error_code == ErrorCode.NOT_COORDINATOR) == is_nobodys
            if is_nobodys:
                key = f"{GROUP}:{topic_id_text(topic_id)}:{result.partition}"
                assert result.error_message == f"No share coordinator currently owns the state of {key}"
        assert harness.share_coordinators[6].calls == []

    with_owners(scenario)


def test_without_any_share_coordinator_there_is_no_coordinator() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        topics = wanted(ApiKey.READ_SHARE_GROUP_STATE, PLACES)
        answer = await harness.client().ask(ApiKey.READ_SHARE_GROUP_STATE, 0, group_id=GROUP, topics=topics)
        assert {int(result.error_code) for _, result in results(answer)} == {ErrorCode.NOT_COORDINATOR}

    run(scenario)


@pytest.mark.parametrize("api_key", STATE_APIS)
def test_a_share_coordinator_that_gives_no_answer_does_not_keep_the_others(api_key: ApiKey) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        script(harness, api_key)

        def broken(request: Any, payload: memoryview) -> Any:
            raise RuntimeError("a bug")

        def short(request: Any, payload: memoryview) -> Any:
            return getattr(messages, METHODS[api_key] + "Response")()

        expected = {broken: ErrorCode.COORDINATOR_NOT_AVAILABLE, short: ErrorCode.UNKNOWN_SERVER_ERROR}
        for answer_of_6, code in expected.items():
            harness.share_coordinators[6].answers[METHODS[api_key]] = answer_of_6
            answer = await harness.client().ask(api_key, 0, group_id=GROUP, topics=wanted(api_key, PLACES))
            for topic_id, result in results(answer):
                assert (result.error_code == code) == (owner_of(topic_id, result.partition) == 6)

    with_owners(scenario)


def test_a_share_partition_that_is_named_twice_is_answered_twice() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        script(harness, ApiKey.READ_SHARE_GROUP_STATE)
        places = [(TOPIC_ID, 1), (OTHER_TOPIC_ID, 0), (TOPIC_ID, 1)]
        topics = wanted(ApiKey.READ_SHARE_GROUP_STATE, places)
        answer = await harness.client().ask(ApiKey.READ_SHARE_GROUP_STATE, 0, group_id=GROUP, topics=topics)
        assert [(topic_id, result.partition, result.error_code) for topic_id, result in results(answer)] == [
            (*place, ErrorCode.NONE) for place in places
        ]

    with_owners(scenario)


@pytest.mark.parametrize("api_key", STATE_APIS)
def test_a_request_for_nothing_is_answered_with_nothing(api_key: ApiKey) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        assert (await client.ask(api_key, 0, group_id=GROUP, topics=[])).results == ()
        topics = [{"topic_id": TOPIC_ID, "partitions": []}]
        (topic,) = (await client.ask(api_key, 0, group_id=GROUP, topics=topics)).results
        assert (topic.topic_id, topic.partitions) == (uuid.UUID(bytes=TOPIC_ID), ())

    with_owners(scenario)


TEXT_ID = topic_id_text(TOPIC_ID)


def test_state_begins_only_for_group_ids_that_a_group_may_have() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        partitions = [{"partition": number, "state_epoch": 1, "start_offset": 0} for number in range(3)]
        topics = [{"topic_id": uuid.UUID(bytes=TOPIC_ID), "partitions": partitions}]
        answer = await harness.client().ask(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, group_id="g" * 1_025, topics=topics)
        codes = [ErrorCode(each.error_code) for each in answer.results[0].partitions]
        assert codes == [ErrorCode.INVALID_REQUEST] * 3
        assert len(answer.results[0].partitions[0].error_message) < 200

    with_owners(scenario)


@pytest.mark.parametrize(
    ("key", "is_right"),
    [
        (f"group:{TEXT_ID}:0", True),
        (f"group:with:colons:{TEXT_ID}:12", True),
        (f"group:{TEXT_ID}:2147483647", True),
        (f"group:{TEXT_ID}:2147483648", False),
        (f"group:{TEXT_ID}:-1", False),
        (f"group:{TEXT_ID}:1_0", False),
        (f"group:{TEXT_ID}: 1", False),
        (f"group:{TEXT_ID}:", False),
        (f":{TEXT_ID}:0", False),
        (f"  :{TEXT_ID}:0", False),
        ("group:short:0", False),
        (f"group:{TEXT_ID}", False),
        ("group", False),
        ("", False),
    ],
)
def test_the_coordinator_of_a_share_partition_is_found_by_its_key(key: str, is_right: bool) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        answer = await client.ask(ApiKey.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=[key])
        (found,) = answer.coordinators
        assert found.key == key
        if is_right:
            assert (found.error_code, found.host, found.port) == (ErrorCode.NONE, "gateway.example", 9092)
        else:
            assert (found.error_code, found.node_id) == (ErrorCode.INVALID_REQUEST, -1)

    with_owners(scenario)
