"""Which partitions a ShareFetch answer names (ShareSessionContext of Kafka 4.3.1), beside those with news.

The first answer of a session names all that are initialized; later ones what joined since, or had an error, once.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode
from support.gateway.harness import OTHER_TOPIC_ID, TOPIC_ID, GatewayClient, GatewayHarness
from support.gateway.scripted_leader import FakeLeader, delivered, fetched, found, listed, play, play_virtually

UNKNOWN = bytes([7] * 16)


def named(answer: object) -> list[tuple[bytes, int]]:
    return sorted(entry[:2] for entry in found(answer))


def test_the_first_answer_names_every_partition_and_later_ones_only_news() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        answer = await fetched(client, 0, listed(TOPIC_ID, 0, 1, 2))
        assert found(answer) == [(TOPIC_ID, part, 0, 0, [], b"") for part in range(3)]
        assert found(await fetched(client, 1)) == []
        leaders[1].ready[TOPIC_ID, 1] = 1
        assert named(await fetched(client, 2)) == [(TOPIC_ID, 1)]
        assert found(await fetched(client, 3)) == []
        leaders[1].ready[TOPIC_ID, 1] = 1
        answer = await fetched(client, 0, listed(TOPIC_ID, 0, 1))
        assert (named(answer), delivered(answer)) == ([(TOPIC_ID, 0), (TOPIC_ID, 1)], [1])

    play(scenario)


def test_a_share_partition_that_is_loading_is_not_named() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        leaders[1].loading.add((TOPIC_ID, 1))
        assert named(await fetched(client, 0, listed(TOPIC_ID, 0, 1))) == [(TOPIC_ID, 0)]
        leaders[1].loading.clear()
        assert named(await fetched(client, 1)) == [], "as in Kafka it is named when it has news"

    play(scenario)


def test_a_fetch_that_may_not_take_anything_names_nothing() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        assert named(await fetched(client, 0, listed(TOPIC_ID, 0), max_records=0)) == []

    play(scenario)


def test_what_joins_later_is_named_once() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await fetched(client, 0, listed(TOPIC_ID, 0))
        leaders[1].loading.add((TOPIC_ID, 1))
        assert named(await fetched(client, 1, listed(TOPIC_ID, 1, 2))) == [(TOPIC_ID, 2)]
        leaders[1].loading.clear()
        assert named(await fetched(client, 2)) == [(TOPIC_ID, 1)]
        assert named(await fetched(client, 3)) == []
        await fetched(client, 4, forgotten_topics_data=[{"topic_id": TOPIC_ID, "partitions": [1]}])
        assert named(await fetched(client, 5, listed(TOPIC_ID, 1))) == [(TOPIC_ID, 1)]

    play(scenario)


def test_what_had_an_error_is_named_when_it_is_well_again() -> None:
    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        await fetched(client, 0, listed(TOPIC_ID, 0))
        (topic,) = [topic for topic in harness.catalog.topics.values() if topic.topic_id == TOPIC_ID]
        lost, topic.partitions[0].leader_node_id = topic.partitions[0].leader_node_id, -1
        await harness.node._catalog.wait_for_version(harness.catalog.change(), timeout_ms=1000)
        (entry,) = found(await fetched(client, 1))
        assert entry[2] != ErrorCode.NONE
        topic.partitions[0].leader_node_id = lost
        await harness.node._catalog.wait_for_version(harness.catalog.change(), timeout_ms=1000)
        assert found(await fetched(client, 2)) == [(TOPIC_ID, 0, 0, 0, [], b"")]
        assert found(await fetched(client, 3)) == []

    play(scenario)


def test_several_leaders_have_the_time_of_the_request_to_get_ready() -> None:
    """The share-partition of one is loading when it is asked first, and ready when the wait is over."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        leaders[2].loading.add((OTHER_TOPIC_ID, 1))
        answers = harness.leaders[2].answers
        look = answers["ShareFetch"]

        async def ready_at_the_end(request: object, payload: memoryview) -> object:
            answer = await look(request, payload)
            leaders[2].loading.clear()
            return answer

        answers["ShareFetch"] = ready_at_the_end
        answer = await fetched(client, 0, listed(OTHER_TOPIC_ID, 0, 1), max_wait=700)
        assert named(answer) == [(OTHER_TOPIC_ID, 0), (OTHER_TOPIC_ID, 1)]

    play_virtually(scenario)


def test_of_several_leaders_those_that_were_not_asked_are_named_too() -> None:
    """Clients know one broker; those that wait for empty partitions in the first answer wait for all of them."""

    async def scenario(harness: GatewayHarness, leaders: dict[int, FakeLeader], client: GatewayClient) -> None:
        leaders[1].ready[OTHER_TOPIC_ID, 0] = 1
        answer = await fetched(client, 0, listed(OTHER_TOPIC_ID, 0, 1), max_wait=5_000)
        assert (named(answer), delivered(answer)) == ([(OTHER_TOPIC_ID, 0), (OTHER_TOPIC_ID, 1)], [0])
        assert harness.leaders[2].calls == []

    play(scenario)
