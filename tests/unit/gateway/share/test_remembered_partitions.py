"""Fetches at leaders that remember the partitions of a session: what they name, and when they name all again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_gateway.share.remembered_partitions import RememberedPartitions
from kshare_gateway.share.sessions import ListedPartition, ShareSessionKey, ShareSessionTable
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import leader_pb2
from support.gateway.harness import OTHER_TOPIC_ID, TOPIC_ID, GatewayClient, GatewayHarness
from support.gateway.scripted_leader import FakeLeader, delivered, fetched, found, listed, play


@dataclass
class Remembering:
    """Makes a FakeLeader remember partitions; `asked` has what each ShareFetch named and whether it named all."""

    leader: FakeLeader
    lists: dict[int, Any] = field(default_factory=dict)
    asked: list[tuple[bool, list[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.leader.role.answers["ShareFetch"] = self.share_fetch

    async def share_fetch(self, request: Any, payload: memoryview) -> Any:
        number = request.remembered_fetch_number
        self.asked.append((not number, [partition.partition for partition in request.partitions]))
        if not number:
            answer, pieces = await self.leader.share_fetch(request, payload)
            if request.remember:
                self.lists = {request.fetch_number: [*request.partitions]}
                answer.is_remembered = True
            return answer, pieces
        if number not in self.lists:
            return leader_pb2.ShareFetchResponse(is_forgotten=True), []
        full = leader_pb2.ShareFetchRequest()
        full.CopyFrom(request)
        named = {(partition.topic_id, partition.partition) for partition in request.partitions}
        for partition in self.lists[number]:
            full.partitions.add(topic_id=partition.topic_id, partition=partition.partition, fetch=True)
        answer, pieces = await self.leader.share_fetch(full, payload)
        telling = [part for part in answer.partitions if part.acquired_records or part.error_code]
        telling += [part for part in answer.partitions[: len(named)] if not part.acquired_records]
        shown = leader_pb2.ShareFetchResponse(acquisition_lock_timeout_ms=1, partitions=telling)
        return shown, pieces


def test_later_fetches_name_only_what_is_acknowledged() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        leader = Remembering(leaders[1])
        await fetched(client, 0, listed(TOPIC_ID, 0, 1, 2))
        leaders[1].ready[TOPIC_ID, 1] = 1
        assert delivered(await fetched(client, 1)) == [1]
        answer = await fetched(client, 2, listed(TOPIC_ID, 1, acknowledge=(0, 9, [1])))
        assert [entry[1] for entry in found(answer)] == [1]
        assert leader.asked == [(True, [0, 1, 2]), (False, []), (False, [1])]

    play(scenario, {"kshare.gateway.cache.bytes": "0"})


def test_all_are_named_again_after_the_partitions_changed() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        leader = Remembering(leaders[1])
        await fetched(client, 0, listed(TOPIC_ID, 0))
        await fetched(client, 1, listed(TOPIC_ID, 1))
        await fetched(client, 2)
        await fetched(client, 3, forgotten_topics_data=[{"topic_id": TOPIC_ID, "partitions": [0]}])
        leaders[1].ready[TOPIC_ID, 0] = 1
        assert delivered(await fetched(client, 4)) == []
        kinds = [(names_all, sorted(named)) for names_all, named in leader.asked]
        assert kinds == [(True, [0]), (True, [0, 1]), (False, []), (True, [1]), (False, [])]

    play(scenario, {"kshare.gateway.cache.bytes": "0"})


def test_partitions_take_turns_while_one_of_them_has_an_error() -> None:
    """Each fetch names all then, and a leader gives the first one with records as many as it can."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        leader = Remembering(leaders[1])
        leaders[1].errors[TOPIC_ID, 2] = ErrorCode.KAFKA_STORAGE_ERROR
        await fetched(client, 0, listed(TOPIC_ID, 0, 1, 2))
        for epoch in range(1, 8):
            await fetched(client, epoch)
        assert [names_all for names_all, _ in leader.asked] == [True, False] + [True] * 6
        assert sorted(named[0] for _, named in leader.asked[2:]) == [0, 0, 1, 1, 2, 2]

    play(scenario, {"kshare.gateway.cache.bytes": "0"})


def test_a_leader_that_forgot_is_told_all_in_the_same_request() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        leader = Remembering(leaders[1])
        await fetched(client, 0, listed(TOPIC_ID, 0, 1))
        leader.lists.clear()
        leaders[1].ready[TOPIC_ID, 1] = 1
        answer = await fetched(client, 1, listed(TOPIC_ID, 0, acknowledge=(0, 9, [1])))
        assert sorted(entry[1] for entry in found(answer)) == [0, 1] and delivered(answer) == [1]
        assert [names_all for names_all, _ in leader.asked] == [True, False, True]
        await fetched(client, 2)
        assert leader.asked[-1] == (False, [])

    play(scenario, {"kshare.gateway.cache.bytes": "0"})


def test_cached_batches_are_named_with_a_remembered_session() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        leader = Remembering(leaders[1])
        await fetched(client, 0, listed(TOPIC_ID, 0, 1, 2))
        leaders[1].ready[TOPIC_ID, 2] = 1
        assert delivered(await fetched(client, 1)) == [2]
        await fetched(client, 2)
        assert leader.asked[-1] == (False, [2])

    play(scenario)


def test_two_leaders_are_asked_in_turn() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        both = [Remembering(leader) for leader in leaders.values()]
        await fetched(client, 0, listed(TOPIC_ID, 0), listed(OTHER_TOPIC_ID, 0))
        for key in ((TOPIC_ID, 0), (OTHER_TOPIC_ID, 0)):
            for leader in leaders.values():
                leader.ready[key] = 100
        topics: set[bytes] = set()
        for epoch in range(1, 5):
            topics.update(entry[0] for entry in found(await fetched(client, epoch)))
        assert topics == {TOPIC_ID, OTHER_TOPIC_ID}, "neither leader starves the other"
        assert all(not names_all for leader in both for names_all, _ in leader.asked[1:])

    play(scenario, {"kshare.gateway.cache.bytes": "0"})


def test_an_answer_to_an_outdated_list_is_not_remembered() -> None:
    table = ShareSessionTable(limit=1, partitions_limit=10)
    key = ShareSessionKey("group", "member")
    first, second = TopicPartition(TOPIC_ID, 0), TopicPartition(TOPIC_ID, 1)
    session, _ = table.open(key, 1, [ListedPartition(first, True)], has_acknowledgements=False)
    view, remembered = CatalogView(), RememberedPartitions()
    remembered.planned(session, view, {"leader": [first]})
    plan_number = remembered.plan_number
    table.update(key, 1, [ListedPartition(second, True)], [], 1)
    remembered.planned(session, view, {"leader": [first, second]})
    remembered.remember("leader", 1, [first], plan_number)
    assert remembered.plan(session, view) is None
    remembered.remember("leader", 2, [first, second], remembered.plan_number)
    assert remembered.plan(session, view) == {"leader": {first: None, second: None}}
    assert remembered.plan(session, CatalogView()) is None, "another view may have other leaders"
