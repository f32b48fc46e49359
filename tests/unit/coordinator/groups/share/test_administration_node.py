"""The second stage of alterations and deletions, on virtual time: share coordinators, leaders, responses."""

from __future__ import annotations

import asyncio

from kshare_core.errors import ErrorCode as E
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.network import Service
from support.coordinator.cluster import CoordinatorCluster, FakeShareCoordinator, run_virtually
from support.coordinator.driver import assigned


class FakeLeader:
    """Notes what it drops, and what the share coordinator had then."""

    def __init__(self, share_coordinator: FakeShareCoordinator) -> None:
        self._share_coordinator = share_coordinator
        self.dropped: list[dict[tuple[str, bytes, int], tuple[int, int]]] = []
        self.is_silent = False

    def service(self) -> Service:
        return Service(methods.LEADER, {methods.DROP_SHARE_PARTITIONS: self.drop})

    async def drop(
        self, request: leader_pb2.DropSharePartitionsRequest, payload: memoryview
    ) -> leader_pb2.DropSharePartitionsResponse:
        if self.is_silent:
            await asyncio.sleep(3600)
        self.dropped.append(dict(self._share_coordinator.state))
        return leader_pb2.DropSharePartitionsResponse()


class Scene:
    """A group with state that nobody is in, a share coordinator and a leader."""

    def __init__(self) -> None:
        self.cluster = CoordinatorCluster()
        self.topic_id = b""

    async def start(self) -> None:
        cluster = self.cluster
        await cluster.start()
        self.share = await cluster.add_share_coordinator(1)
        self.leader = FakeLeader(self.share)
        await cluster.network.serve("leader:1", [self.leader.service()])
        await cluster.register(pb.ROLE_LEADER, 1, "leader:1")
        self.topic_id = (await cluster.create_topic("t", 2)).topic_id
        await cluster.heartbeat("m", 0, ["t"])
        await asyncio.sleep(0.2)
        await cluster.heartbeat("m", -1)
        assert self.epochs() == {0: (2, -1), 1: (2, -1)}
        assert self.leader.dropped == [], "nobody has anything of new share-partitions"

        self._renewing = asyncio.ensure_future(self._renew_leases())

    async def _renew_leases(self) -> None:
        while True:
            await self.cluster.watch(pb.ROLE_SHARE_COORDINATOR, 1, 0, 0)
            if not self.leader.is_silent:
                await self.cluster.watch(pb.ROLE_LEADER, 1, 0, 0)
            await asyncio.sleep(3)

    async def stop(self) -> None:
        self._renewing.cancel()
        await self.cluster.node.stop(0)

    def epochs(self) -> dict[int, tuple[int, int]]:
        """State epoch and start offset of each partition that has state."""
        return {key[2]: found for key, found in sorted(self.share.state.items())}

    async def alter(self, **offsets: int) -> dict[int, E]:
        partitions = [
            pb.AlterShareGroupOffsetsRequest.Partition(partition=int(name[1:]), start_offset=offset)
            for name, offset in offsets.items()
        ]
        topic = pb.AlterShareGroupOffsetsRequest.Topic(topic_name="t", partitions=partitions)
        request = pb.AlterShareGroupOffsetsRequest(group_id="group", topics=[topic])
        answer, _ = await self.cluster.channel.call(methods.ALTER_SHARE_GROUP_OFFSETS, request, timeout_ms=60_000)
        assert answer.error_code == 0, answer
        return {result.partition: E(result.error_code) for result in answer.results}

    async def delete_offsets(self) -> E:
        request = pb.DeleteShareGroupOffsetsRequest(group_id="group", topic_names=["t"])
        answer, _ = await self.cluster.channel.call(methods.DELETE_SHARE_GROUP_OFFSETS, request, timeout_ms=60_000)
        return E(answer.error_code or answer.results[0].error_code)

    async def delete_group(self) -> E:
        request = pb.DeleteGroupsRequest(group_ids=["group"])
        answer, _ = await self.cluster.channel.call(methods.DELETE_GROUPS, request, timeout_ms=60_000)
        return E(answer.results[0].error_code)


def test_an_alteration_is_answered_when_state_and_leader_have_it() -> None:
    async def main() -> None:
        scene = Scene()
        await scene.start()
        assert await scene.alter(p0=5, p1=6) == {0: E.NONE, 1: E.NONE}
        assert scene.epochs() == {0: (4, 5), 1: (4, 6)}
        assert [{key[2]: value for key, value in state.items()} for state in scene.leader.dropped] == [
            {0: (4, 5), 1: (4, 6)}
        ], "the leader drops it after the state was replaced, or it would read the old one again"
        await scene.stop()

    run_virtually(main)


def test_a_deletion_is_answered_when_state_and_leader_have_it() -> None:
    async def main() -> None:
        scene = Scene()
        await scene.start()
        assert await scene.delete_offsets() is E.NONE
        assert (scene.epochs(), scene.leader.dropped) == ({}, [{}])
        assert await scene.delete_offsets() is E.UNKNOWN_TOPIC_OR_PARTITION
        assert await scene.delete_group() is E.NONE
        assert await scene.delete_group() is E.GROUP_ID_NOT_FOUND
        await scene.stop()

    run_virtually(main)


def test_what_takes_too_long_is_said_and_done_all_the_same() -> None:
    async def main() -> None:
        scene = Scene()
        await scene.start()
        scene.share.refusals = [E.COORDINATOR_LOAD_IN_PROGRESS] * 1000
        assert await scene.alter(p0=5) == {0: E.COORDINATOR_NOT_AVAILABLE}
        scene.share.refusals = []
        await asyncio.sleep(31)
        assert scene.epochs()[0] == (4, 5)
        await scene.stop()

    run_virtually(main)


def test_a_silent_leader_holds_a_change_up_until_its_lease_ends() -> None:
    async def main() -> None:
        scene = Scene()
        await scene.start()
        scene.leader.is_silent = True
        began = asyncio.get_running_loop().time()
        assert await scene.alter(p0=5) == {0: E.NONE}
        assert 9 < asyncio.get_running_loop().time() - began < 16, "kshare.node.lease.ms, and the call under way"
        assert scene.epochs()[0] == (4, 5)
        await scene.stop()

    run_virtually(main)


def test_news_does_not_wait_for_a_pause_between_tries() -> None:
    """An old problem elsewhere has made the pauses long; a new request is tried at once."""

    async def main() -> None:
        scene = Scene()
        await scene.start()
        scene.share.refusals = [E.KAFKA_STORAGE_ERROR] * 8
        waiting = asyncio.ensure_future(scene.alter(p0=5))
        await asyncio.sleep(15)
        assert scene.share.refusals == [] and scene.epochs()[0] == (2, -1), "the next try is ten seconds away"
        began = asyncio.get_running_loop().time()
        assert await scene.alter(p1=6) == {1: E.NONE}
        assert asyncio.get_running_loop().time() - began < 1
        assert await waiting == {0: E.NONE}
        await scene.stop()

    run_virtually(main)


def test_a_share_coordinator_that_is_not_ready_is_asked_again_within_500_ms() -> None:
    async def main() -> None:
        scene = Scene()
        await scene.start()
        scene.share.refusals = [E.COORDINATOR_LOAD_IN_PROGRESS] * 20
        waiting = asyncio.ensure_future(scene.alter(p0=5))
        while scene.share.refusals:
            await asyncio.sleep(0.01)
        ready_at = asyncio.get_running_loop().time()
        assert await waiting == {0: E.NONE}
        assert asyncio.get_running_loop().time() - ready_at <= 0.52
        await scene.stop()

    run_virtually(main)


def test_old_state_is_deleted_before_new_state_is_made() -> None:
    async def main() -> None:
        scene = Scene()
        await scene.start()
        scene.share.refusals = [E.COORDINATOR_LOAD_IN_PROGRESS]
        deleting = asyncio.ensure_future(scene.delete_offsets())
        await asyncio.sleep(0.01)
        first = await scene.cluster.heartbeat("n", 0, ["t"])
        assert await deleting is E.NONE
        await asyncio.sleep(0.3)
        assert scene.epochs() == {0: (4, -1), 1: (4, -1)}
        assert assigned(await scene.cluster.heartbeat("n", first.member_epoch)) == {"t": [0, 1]}
        await scene.stop()

    run_virtually(main)


def test_newer_state_that_the_coordinator_does_not_know_is_replaced() -> None:
    async def main() -> None:
        scene = Scene()
        await scene.start()
        scene.share.state["group", scene.topic_id, 0] = (77, 9)
        assert await scene.alter(p0=5) == {0: E.NONE}
        assert scene.epochs()[0] == (78, 5)
        await scene.stop()

    run_virtually(main)


def test_an_interrupted_change_goes_on_after_a_restart() -> None:
    async def main() -> None:
        scene = Scene()
        await scene.start()
        scene.share.refusals = [E.COORDINATOR_LOAD_IN_PROGRESS] * 3
        deleting = asyncio.ensure_future(scene.delete_group())
        await asyncio.sleep(0.05)
        await scene.cluster.restart()
        await asyncio.gather(deleting, return_exceptions=True)
        await asyncio.sleep(2)
        assert scene.epochs() == {}
        assert await scene.delete_group() is E.GROUP_ID_NOT_FOUND
        await scene.stop()

    run_virtually(main)


def test_members_that_join_at_once_are_balanced_when_the_interval_is_over() -> None:
    async def main() -> None:
        scene = Scene()
        await scene.start()
        cluster = scene.cluster
        await cluster.heartbeat("a", 0, ["t"])
        joined = await cluster.heartbeat("b", 0, ["t"])
        assert assigned(joined) == {"t": [0]}, "its first record comes at once"
        await asyncio.sleep(1.1)
        assert assigned(await cluster.heartbeat("a", joined.member_epoch)) == {"t": [1]}
        described = await cluster.describe()
        assert described.assignment_epoch == described.group_epoch
        await scene.stop()

    run_virtually(main)
