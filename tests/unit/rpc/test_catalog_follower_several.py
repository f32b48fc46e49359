"""The follower among several coordinators that go away, refuse, are silent, and disagree; all under virtual time."""

from __future__ import annotations

import asyncio

import pytest

from kshare_core.errors import ErrorCode
from kshare_rpc.catalog_follower import (
    RETRY_INTERVAL_MS,
    SEVERAL_CALL_TIMEOUT_MS,
    SEVERAL_WATCH_WAIT_MS,
    CatalogFollower,
)
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.rpc.scripted_coordinators import ME, ScriptedCoordinators, address_of, all_owned_by, group_in, play, until
from support.simulation.loop import VirtualLoop


def test_starts_at_the_active_one_wherever_it_is_in_the_list() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        assert follower.active_address == address_of(3)
        assert follower.view.coordinators == {3: address_of(3), 1: address_of(1), 2: address_of(2)}
        assert follower.view.group_partition_owners == all_owned_by(3)
        assert follower.view.coordinator_address(group_in(49)) == address_of(3)

    play(scenario, 3, 1, 2, told=(1, 2, 3))


def test_goes_where_it_is_pointed_to_an_address_that_it_was_not_given() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        assert follower.active_address == address_of(9)
        assert follower.has_several_coordinators
        assert cluster[1].count("RegisterNode") == 1

    play(scenario, 9, 1, told=(1,))


def test_one_coordinator_is_asked_at_the_address_that_is_configured() -> None:
    """What a coordinator believes its own address to be may be none that others reach."""

    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        assert not follower.has_several_coordinators
        await cluster[1].go_away()
        cluster.change()
        await asyncio.sleep(2)
        assert follower.active_address == address_of(1)
        await cluster[1].start()
        await until(lambda: follower.view.coordinators_version == 2, seconds=1)

    play(scenario, 1)


def test_a_takeover_is_found_at_once_when_the_connection_dies() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        epoch = follower.node_epoch
        await cluster[1].go_away()
        cluster.change(active=2, owners=all_owned_by(2))
        took = await until(lambda: follower.view.group_partition_owners == all_owned_by(2), seconds=5)
        assert took < 0.1
        assert follower.node_epoch == epoch, "the registration is in the catalog, which all of them share"
        assert cluster[2].calls[0][1].after_version == 0, "the whole catalog, where it was not before"

    play(scenario, 1, 2, 3)


def test_while_none_is_active_it_asks_each_once_in_a_round() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        await cluster[1].go_away()
        for node in cluster.nodes.values():
            node.points_at = address_of(1)  # nobody knows yet that it is gone
        cluster.active = None
        cluster.change()
        await asyncio.sleep(5)
        rounds = 5_000 / RETRY_INTERVAL_MS
        for node_id in (2, 3):
            assert rounds * 0.7 < cluster[node_id].count("WatchCatalog") <= rounds + 1
        cluster.change(active=3)
        for node in cluster.nodes.values():
            node.points_at = None
        assert await until(lambda: follower.active_address == address_of(3), seconds=5) < 0.5

    play(scenario, 1, 2, 3)


def test_coordinators_that_point_at_each_other_cost_a_few_calls() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        cluster[1].points_at, cluster[2].points_at = address_of(2), address_of(1)
        cluster.active = None
        cluster.change()
        before = len(cluster[1].calls) + len(cluster[2].calls)
        await asyncio.sleep(10)
        assert len(cluster[1].calls) + len(cluster[2].calls) - before <= 2 * 10_000 / RETRY_INTERVAL_MS + 2

    play(scenario, 1, 2)


def test_it_stays_with_the_one_that_answers() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        cluster[2].points_at = address_of(3)
        before = len(cluster[2].calls) + len(cluster[3].calls)
        for _ in range(20):
            cluster.new_version()
            await asyncio.sleep(1)
        assert follower.view.version == 21
        assert len(cluster[2].calls) + len(cluster[3].calls) == before

    play(scenario, 1, 2, 3)


def test_a_silent_one_is_left_in_a_short_time() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        cluster[1].silent = True
        cluster.change(active=2)
        longest_s = (SEVERAL_WATCH_WAIT_MS + SEVERAL_CALL_TIMEOUT_MS) / 1000
        assert await until(lambda: follower.active_address == address_of(2), seconds=10) < longest_s + 0.1

    play(scenario, 1, 2)


def test_only_answers_without_an_error_prolong_the_lease() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(3)
        assert follower.lease_renewed_at is not None
        assert loop.time() - follower.lease_renewed_at <= 2
        cluster.active = None
        cluster.change()
        lost_at = loop.time()
        await asyncio.sleep(30)
        assert follower.lease_renewed_at <= lost_at
        cluster.change(active=2)
        await asyncio.sleep(1)
        assert follower.lease_renewed_at > lost_at + 30 - 1

    play(scenario, 1, 2)


@pytest.mark.parametrize("told", [(1,), (1, 2)])
def test_an_error_is_no_answer_and_is_not_asked_for_without_a_rest(told: tuple[int, ...]) -> None:
    """As of a coordinator whose disk fails: it prolongs no lease either."""

    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        lease_renewed_at, node = follower.lease_renewed_at, cluster[1]

        async def failing(request: pb.WatchCatalogRequest) -> pb.WatchCatalogResponse:
            return pb.WatchCatalogResponse(error_code=ErrorCode.KAFKA_STORAGE_ERROR, version=request.after_version)

        node._watch = failing  # type: ignore[method-assign]
        cluster.new_version()
        await asyncio.sleep(0.1)
        before, lease_renewed_at = node.count("WatchCatalog"), follower.lease_renewed_at
        await asyncio.sleep(5)
        assert node.count("WatchCatalog") - before <= 5_000 / RETRY_INTERVAL_MS + 1
        assert follower.lease_renewed_at == lease_renewed_at

    play(scenario, 1, *told[1:], told=told)


def test_a_registration_that_the_new_active_one_does_not_know_is_made_there() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        epoch = follower.node_epoch
        await cluster[1].go_away()
        cluster.registered.clear()
        cluster.change(active=2)
        await until(lambda: follower.node_epoch > epoch, seconds=5)
        assert ME.incarnation in cluster.registered
        assert await follower.wait_for_version(1, timeout_ms=5_000)

    play(scenario, 1, 2)


def test_it_waits_for_coordinators_that_start_later() -> None:
    async def main() -> None:
        cluster = ScriptedCoordinators(1, 2)
        cluster.active = 2
        problems: list[str] = []
        follower = cluster.follower(problems=problems)
        start = asyncio.ensure_future(follower.start(ME))
        await asyncio.sleep(20)
        assert not start.done()
        assert any("no server listens" in problem for problem in problems)
        await cluster.start()
        await start
        assert follower.active_address == address_of(2)
        await follower.stop()

    VirtualLoop(time_limit=100).run(main())


def test_the_newest_of_many_takeovers_wins_and_every_view_is_seen_once() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        for turn in range(30):
            active = turn % 3 + 1
            cluster.change(active=active, owners=all_owned_by(active))
            cluster.new_version()
            await asyncio.sleep(0.7)
            assert follower.active_address == address_of(active)
            assert follower.view.version == cluster.version
            assert follower.view.coordinator_address("any") == address_of(active)

    play(scenario, 1, 2, 3)


def test_a_failed_search_is_one_problem_and_a_successful_one_is_none() -> None:
    async def main() -> None:
        cluster, problems = ScriptedCoordinators(1, 2, 3), list[str]()
        await cluster.start()
        follower = cluster.follower(problems=problems)
        await follower.start(ME)
        await cluster[1].go_away()
        cluster.change(active=3)
        await until(lambda: follower.active_address == address_of(3), seconds=5)
        assert problems == []
        cluster.active = None
        cluster.change()
        await asyncio.sleep(3)
        assert len(problems) > 5
        for node_id in (1, 2, 3):
            assert address_of(node_id) in problems[1]
        assert len(set(problems[1:])) == 1, "it can be told once"
        await follower.stop()

    VirtualLoop(time_limit=100).run(main())
