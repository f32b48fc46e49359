"""The catalog in pieces: each of a bounded size, together the view of one version, whatever happens between them."""

from __future__ import annotations

import asyncio
import random

import pytest

from kshare_coordinator import catalog_transfers, core
from kshare_coordinator.catalog_transfers import CatalogTransfers
from kshare_coordinator.machine import commands, state
from kshare_coordinator.machine.catalog.view import CatalogPieces, catalog_answer
from kshare_coordinator.metadata import appending
from kshare_coordinator.node import CoordinatorNode
from kshare_coordinator.settings import CoordinatorSettings
from kshare_core.configs import PROCESS_CONFIGS, Configs
from kshare_rpc.catalog import CatalogView, ViewDraft, next_view
from kshare_rpc.catalog_follower import CatalogFollower
from kshare_rpc.exchange.frames import FRAME_BYTES_LIMIT
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.network import Network
from kshare_runtime.ports import Environment
from support.coordinator.cluster import ADDRESS, CoordinatorCluster, LoopClock, run_virtually
from support.coordinator.driver import CoordinatorDriver
from support.coordinator.several_coordinators import SeveralCoordinators

PIECE_BYTES = 1_000
LOCK_DURATION = "share.record.lock.duration.ms"


def alteration(group_ids: list[str], value: str = "20000") -> pb.IncrementalAlterConfigsRequest:
    """Without a value the config is deleted."""
    change = pb.IncrementalAlterConfigsRequest.AlterableConfig(
        name=LOCK_DURATION, config_operation=0 if value else 1, value=value
    )
    return pb.IncrementalAlterConfigsRequest(
        resources=[
            pb.IncrementalAlterConfigsRequest.Resource(resource_type=32, resource_name=group_id, configs=[change])
            for group_id in group_ids
        ]
    )


def alter(driver: CoordinatorDriver, group_ids: list[str], value: str = "20000") -> None:
    results = driver.run(commands.IncrementalAlterConfigs(request=alteration(group_ids, value))).results
    assert not any(result.error_code for result in results)


def catalog(topics: int, groups: int) -> CoordinatorDriver:
    driver = CoordinatorDriver()
    driver.register(pb.ROLE_LEADER, 1, "one")
    for number in range(topics):
        driver.create_topic(f"t{number}", 3)
    alter(driver, [f"g{number}" for number in range(groups)])
    return driver


def whole(driver: CoordinatorDriver) -> CatalogView:
    return next_view(CatalogView(), catalog_answer(driver.state, 0))


def test_pieces_make_the_view_of_their_first_version() -> None:
    driver = catalog(30, 100)
    expected = whole(driver)
    pieces, draft, number = CatalogPieces(driver.state, 0, PIECE_BYTES), ViewDraft(CatalogView()), 0
    while True:
        piece = pieces.piece(number)
        assert piece.ByteSize() < PIECE_BYTES + 300
        draft.add(piece)
        if not piece.more:
            break
        driver.delete(f"t{number}")
        driver.create_topic(f"t{number}", 1)
        driver.register(pb.ROLE_LEADER, 1, f"restarted-{number}")
        alter(driver, [f"g{number}"], "")
        alter(driver, [f"g{number + 1}"], "30000")
        number += 1
    assert number > 3
    view = draft.finished(piece)
    assert view == expected
    assert next_view(view, catalog_answer(driver.state, view.version)) == whole(driver)


def test_changes_come_in_pieces_too() -> None:
    driver = catalog(10, 10)
    view = whole(driver)
    driver.register(pb.ROLE_LEADER, 1, "two")
    alter(driver, [f"h{number}" for number in range(200)])
    driver.delete("t1", "t2")
    driver.create_topic("t1", 5)
    pieces, draft, number = CatalogPieces(driver.state, view.version, PIECE_BYTES), ViewDraft(view), 0
    while (piece := pieces.piece(number)).more:
        draft.add(piece)
        number += 1
    draft.add(piece)
    assert number > 3
    assert not piece.full
    assert draft.finished(piece) == whole(driver)


def test_groups_that_come_and_go_leave_a_bounded_log_of_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "CHANGE_LOG_BYTES_LIMIT", limit := 500_000)
    driver = catalog(2, 0)
    for attack in range(6):
        ids = [f"{attack}-{number}-".ljust(1_000, "g") for number in range(150)]
        alter(driver, ids)
        alter(driver, ids, "")
        assert driver.state.change_log_bytes == sum(changes.bytes for changes in driver.state.changes)
        assert 0 < driver.state.change_log_bytes < limit
    version = driver.state.version
    assert catalog_answer(driver.state, version - len(driver.state.changes) - 1).full
    view = whole(driver)
    alter(driver, [f"{number}-".ljust(1_000, "h") for number in range(600)])
    assert len(driver.state.changes) == 1, "the newest is kept whatever it changed"
    answer = catalog_answer(driver.state, version)
    assert not answer.full
    assert next_view(view, answer) == whole(driver)


def request(transfer_id: int = 0, piece: int = 0, *, takes_pieces: bool = True) -> pb.WatchCatalogRequest:
    return pb.WatchCatalogRequest(
        role=pb.ROLE_LEADER,
        node_id=1,
        incarnation="one",
        takes_pieces=takes_pieces,
        transfer_id=transfer_id,
        piece=piece,
    )


def test_a_piece_whose_answer_was_lost_is_made_again() -> None:
    driver = catalog(0, 100)
    transfers = CatalogTransfers(random.Random(1), PIECE_BYTES)
    first = transfers.answer(request(), driver.state)
    second = transfers.next_piece(request(first.transfer_id, 1))
    assert second is not None
    assert transfers.next_piece(request(first.transfer_id, 1)) == second
    assert transfers.next_piece(request(first.transfer_id, 3)) is None
    assert transfers.next_piece(request(first.transfer_id + 1, 1)) is None


def test_a_node_that_knows_no_pieces_gets_one_answer() -> None:
    driver = catalog(0, 100)
    answer = CatalogTransfers(random.Random(1), PIECE_BYTES).answer(request(takes_pieces=False), driver.state)
    assert (answer.more, answer.transfer_id, len(answer.group_configs)) == (False, 0, 100)


def test_transfers_of_nodes_that_are_gone_are_forgotten() -> None:
    driver = catalog(0, 100)
    transfers = CatalogTransfers(random.Random(1), PIECE_BYTES)
    first = transfers.answer(request(), driver.state)
    driver.run(commands.ExpireNode(role=pb.ROLE_LEADER, node_id=1, incarnation="one"))
    driver.register(pb.ROLE_LEADER, 2, "one")
    other = request()
    other.node_id = 2
    transfers.answer(other, driver.state)
    assert transfers.next_piece(request(first.transfer_id, 1)) is None


async def submit(cluster: CoordinatorCluster, group_ids: list[str], value: str = "20000") -> None:
    assert cluster.node.core is not None
    command = commands.IncrementalAlterConfigs(request=alteration(group_ids, value))
    assert not any(result.error_code for result in (await cluster.node.core.submit(command)).results)


class Following:
    """A leader's follower on a cluster's network; `views` are the versions that it saw, with their group configs."""

    def __init__(self, network: Network, address: str) -> None:
        self.views: list[tuple[int, int]] = []
        self.problems: list[str] = []
        self.follower = CatalogFollower(
            network=network,
            coordinator_address=address,
            on_view=lambda old, new: self.views.append((new.version, len(new.group_configs))),
            on_problem=self.problems.append,
        )

    async def start(self) -> None:
        node = pb.Node(role=pb.ROLE_LEADER, node_id=1, incarnation="one", rpc_address="leader:1")
        await self.follower.start(node)


def test_a_catalog_longer_than_a_frame_is_served() -> None:
    """What an older version let in: 4,200 groups with ids of 32,000 bytes. Over gRPC, which refuses a longer frame."""
    cluster = CoordinatorCluster(
        {
            "kshare.id.max.bytes": "32767",
            "kshare.catalog.max.bytes": str(1024 * 1024 * 1024),
            "kshare.catalog.request.max.bytes": str(16 * 1024 * 1024),
        }
    )

    async def store() -> None:
        await cluster.start()
        for attack in range(10):
            await submit(cluster, [f"{attack}-{number}-".ljust(32_000, "g") for number in range(420)])
        await cluster.node.stop(0)

    async def follow() -> None:
        network = GrpcNetwork()
        node = CoordinatorNode(
            environment=Environment(clock=LoopClock(), random=random.Random(1), open_store=cluster.disk.open_store),
            network=network,
            settings=CoordinatorSettings(
                node_id=1, listen="127.0.0.1:0", coordinator_address="", configs=Configs(PROCESS_CONFIGS, {})
            ),
        )
        await node.start()
        assert node.core is not None
        assert node.core.state.catalog_bytes > FRAME_BYTES_LIMIT
        following = Following(network, node.address)
        async with asyncio.timeout(60):
            await following.start()
        assert [groups for _, groups in following.views] == [4_200], "nothing is seen before all of it is there"
        await following.follower.stop()
        await node.stop(0)

    run_virtually(store)
    asyncio.run(follow())


def test_a_coordinator_that_restarts_between_two_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_transfers.CatalogTransfers.__init__, "__defaults__", (PIECE_BYTES,))

    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        ids = [f"group-{number}" for number in range(500)]
        await submit(cluster, ids)
        following = Following(cluster.network, ADDRESS)
        starting = asyncio.get_running_loop().create_task(following.start())
        for _ in range(40):
            await asyncio.sleep(0)
        assert following.follower.lease_renewed_at is not None
        assert not starting.done()
        await cluster.restart()
        await starting
        assert [groups for _, groups in following.views] == [500]
        await submit(cluster, ids, "")
        assert await following.follower.wait_for_version(following.follower.view.version + 1, timeout_ms=5_000)
        assert following.follower.view.group_configs == {}
        await following.follower.stop()
        await cluster.node.stop(0)

    run_virtually(main)


def test_many_large_changes_at_once_are_written_to_etcd_and_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one turn more than one append may have; then another coordinator reads the whole catalog."""
    monkeypatch.setattr(appending, "APPEND_BYTES_LIMIT", 1_300_000)
    monkeypatch.setattr(core, "TURN_BYTES_LIMIT", 200_000)
    several = SeveralCoordinators()

    async def main() -> None:
        await several.start()
        active = several.active()
        assert active.incarnation is not None
        requests = [[f"{each}-{number}-".ljust(1_000, "g") for number in range(500)] for each in range(8)]
        submit = several.cores()[active.name].submit

        async def attack() -> list[pb.IncrementalAlterConfigsResponse]:
            """On the coordinator's host, all in one turn."""
            return await asyncio.gather(
                *(submit(commands.IncrementalAlterConfigs(request=alteration(ids))) for ids in requests)
            )

        for answer in await several.loop.task_in(active.incarnation, attack(), "attack"):
            assert not any(result.error_code for result in answer.results)
        active.crash()
        await asyncio.sleep(10)
        other = await several.client("other").start(2)
        assert len(other.follower.view.group_configs) == 4_000

    several.run(main)
