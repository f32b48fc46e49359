"""Views of the catalog, and the follower that keeps them new."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from google.protobuf.message import Message

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import SharePartitionKey, TopicPartition
from kshare_rpc import catalog_follower
from kshare_rpc.catalog import CatalogView, logs_begun_anew, next_view
from kshare_rpc.catalog_follower import CatalogFollower
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import REGISTER_NODE, WATCH_CATALOG
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_rpc.network import Service

ORDERS, PAYMENTS = b"o" * 16, b"p" * 16


def topic(topic_id: bytes, name: str, leader_node_id: int = 1) -> pb.Topic:
    return pb.Topic(topic_id=topic_id, name=name, partitions=[pb.Topic.Partition(leader_node_id=leader_node_id)])


def full_answer(version: int = 1) -> pb.WatchCatalogResponse:
    return pb.WatchCatalogResponse(
        version=version,
        full=True,
        cluster_id="cluster",
        topics=[topic(ORDERS, "orders")],
        group_configs=[pb.GroupConfig(group_id="g", configs=[pb.ConfigEntry(name="a", value="1")])],
        nodes=[
            pb.Node(role=pb.ROLE_LEADER, node_id=1, rpc_address="leader:1"),
            pb.Node(role=pb.ROLE_SHARE_COORDINATOR, node_id=4, rpc_address="share-coordinator:1"),
            pb.Node(role=pb.ROLE_GATEWAY, node_id=3),
            pb.Node(role=pb.ROLE_GATEWAY, node_id=2),
        ],
        state_partition_owners=[pb.StatePartitionOwner(state_partition=0, node_id=4)],
        state_partition_count=1,
    )


def test_a_full_answer_is_the_whole_view() -> None:
    older = next_view(CatalogView(), full_answer())
    view = next_view(older, pb.WatchCatalogResponse(version=2, full=True, topics=[topic(PAYMENTS, "payments")]))
    assert (list(view.topics_by_name), dict(view.group_configs), view.nodes) == (["payments"], {}, ())
    assert list(older.topics_by_name) == ["orders"]


def test_a_change_leaves_the_rest() -> None:
    view = next_view(CatalogView(), full_answer())
    assert next_view(view, pb.WatchCatalogResponse(version=1)) is view
    changed = next_view(view, pb.WatchCatalogResponse(version=2, topics=[topic(PAYMENTS, "payments", 9)]))
    assert sorted(changed.topics_by_name) == ["orders", "payments"]
    assert changed.nodes == view.nodes
    gone = next_view(changed, pb.WatchCatalogResponse(version=3, deleted_topic_ids=[ORDERS]))
    assert list(gone.topics_by_name) == ["payments"]
    assert gone.group_configs == {"g": {"a": "1"}}


def test_which_logs_began_anew() -> None:
    def with_epochs(*epochs: int) -> pb.Topic:
        partitions = [pb.Topic.Partition(partition=index, given_up_epoch=at) for index, at in enumerate(epochs)]
        return pb.Topic(topic_id=ORDERS, name="orders", partitions=partitions)

    empty = CatalogView()
    old = next_view(empty, pb.WatchCatalogResponse(version=1, full=True, topics=[with_epochs(0, 4)]))
    new = next_view(old, pb.WatchCatalogResponse(version=2, topics=[with_epochs(7, 4, 0)]))
    assert logs_begun_anew(empty, old) == []
    assert logs_begun_anew(old, new) == [TopicPartition(ORDERS, 0)]
    assert logs_begun_anew(new, new) == []


def test_addresses() -> None:
    view = next_view(CatalogView(), full_answer())
    assert view.leader_address(TopicPartition(ORDERS, 0)) == "leader:1"
    assert view.leader_address(TopicPartition(ORDERS, 1)) is None
    assert view.leader_address(TopicPartition(ORDERS, -1)) is None
    assert view.leader_address(TopicPartition(PAYMENTS, 0)) is None
    assert view.share_coordinator_address(SharePartitionKey("g", ORDERS, 0)) == "share-coordinator:1"
    assert CatalogView().share_coordinator_address(SharePartitionKey("g", ORDERS, 0)) is None
    assert [node.node_id for node in view.gateways()] == [2, 3]


class Coordinator:
    """Answers WatchCatalog with what the test puts in line, and counts registrations."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[pb.WatchCatalogResponse] = asyncio.Queue()
        self.asked_after: list[int] = []
        self.registrations = 0

    def service(self) -> Service:
        return Service("Coordinator", {REGISTER_NODE: self.register, WATCH_CATALOG: self.watch})

    async def register(self, request: pb.RegisterNodeRequest, _: memoryview) -> Message:
        self.registrations += 1
        return pb.RegisterNodeResponse(node_epoch=10 + self.registrations, lease_ms=9_000)

    async def watch(self, request: pb.WatchCatalogRequest, _: memoryview) -> Message:
        self.asked_after.append(request.after_version)
        return await self.answers.get()


class Following:
    """A follower and what it said."""

    def __init__(self) -> None:
        self.network = InProcessNetwork()
        self.coordinator = Coordinator()
        self.views: list[tuple[int, int]] = []
        self.problems: list[str] = []
        self.bug: Exception | None = None
        self.follower = CatalogFollower(
            network=self.network,
            coordinator_address="coordinator:1",
            on_view=self.on_view,
            on_problem=self.problems.append,
        )

    def on_view(self, old: CatalogView, new: CatalogView) -> None:
        if self.bug is not None:
            error, self.bug = self.bug, None
            raise error
        self.views.append((old.version, new.version))

    async def start(self) -> None:
        await self.network.serve("coordinator:1", [self.coordinator.service()])
        self.coordinator.answers.put_nowait(full_answer())
        await self.follower.start(pb.Node(role=pb.ROLE_LEADER, node_id=1, incarnation="x"))


def follow(play: Callable[[Following], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_follower, "RETRY_INTERVAL_MS", 1)

    async def main() -> None:
        following = Following()
        async with asyncio.timeout(20):
            await play(following)
        await following.follower.stop()

    asyncio.run(main())


def test_follows_from_version_to_version(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(following: Following) -> None:
        await following.start()
        follower, coordinator = following.follower, following.coordinator
        assert (follower.view.version, follower.node_epoch, follower.lease_ms) == (1, 11, 9_000)
        assert not await follower.wait_for_version(2, timeout_ms=1)
        coordinator.answers.put_nowait(pb.WatchCatalogResponse(version=1))
        coordinator.answers.put_nowait(pb.WatchCatalogResponse(version=5))
        assert await follower.wait_for_version(2, timeout_ms=10_000)
        assert following.views == [(0, 1), (1, 5)]
        assert coordinator.asked_after[:3] == [0, 1, 1]
        assert following.problems == []

    follow(play, monkeypatch)


def test_a_lost_registration_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(following: Following) -> None:
        await following.start()
        follower, coordinator = following.follower, following.coordinator
        gone = pb.WatchCatalogResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID, error_message="the lease is over")
        coordinator.answers.put_nowait(gone)
        coordinator.answers.put_nowait(full_answer(version=8))
        assert await follower.wait_for_version(8, timeout_ms=10_000)
        assert follower.node_epoch == 12
        assert coordinator.asked_after[:3] == [0, 1, 0]
        assert following.problems == ["the lease is over"]

    follow(play, monkeypatch)


def test_waits_for_a_coordinator_that_starts_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(following: Following) -> None:
        start = asyncio.ensure_future(
            following.follower.start(pb.Node(role=pb.ROLE_LEADER, node_id=1, incarnation="x"))
        )
        while not following.problems:
            await asyncio.sleep(0)
        following.coordinator.answers.put_nowait(full_answer())
        await following.network.serve("coordinator:1", [following.coordinator.service()])
        await start
        assert following.follower.view.version == 1
        assert "no server listens on coordinator:1" in following.problems[0]

    follow(play, monkeypatch)


def test_a_view_that_was_not_taken_is_told_and_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(following: Following) -> None:
        await following.start()
        following.bug = RuntimeError("a bug")
        following.coordinator.answers.put_nowait(full_answer(version=2))
        following.coordinator.answers.put_nowait(full_answer(version=2))
        assert await following.follower.wait_for_version(2, timeout_ms=10_000)
        assert following.coordinator.asked_after[:3] == [0, 1, 1]
        assert following.problems == ["the catalog's next version could not be applied: RuntimeError: a bug"]

    follow(play, monkeypatch)
