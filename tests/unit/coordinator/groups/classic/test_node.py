"""Classic groups at the coordinator as a role, on virtual time: calls that wait, sessions, restarts, bad disks."""

from __future__ import annotations

import asyncio

import pytest

from kshare_core.errors import ErrorCode as E
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.network import CallFailed
from support.coordinator.cluster import CoordinatorCluster, run_virtually
from support.groups.classic_driver import GROUP, RANGE
from support.runtime.unreadable_store import UnreadableStore

CALL_TIMEOUT_MS = 600_000
SESSION_MS = 10_000


class Members:
    """The calls of members, through the network."""

    def __init__(self, cluster: CoordinatorCluster) -> None:
        self.cluster = cluster

    async def join(self, member_id: str = "", *, instance: str = "", version: int = 3) -> pb.JoinGroupResponse:
        request = pb.JoinGroupRequest(
            group_id=GROUP,
            member_id=member_id,
            group_instance_id=instance,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[pb.JoinGroupRequest.Protocol(name=RANGE[0], metadata=RANGE[1])],
            client_id="client",
            requires_known_member_id=version >= 4,
        )
        answer, _ = await self.cluster.channel.call(methods.JOIN_GROUP, request, timeout_ms=CALL_TIMEOUT_MS)
        return answer

    async def sync(
        self, member_id: str, generation_id: int, assignments: dict[str, bytes] | None = None
    ) -> pb.SyncGroupResponse:
        named = [
            pb.SyncGroupRequest.Assignment(member_id=name, assignment=data)
            for name, data in (assignments or {}).items()
        ]
        request = pb.SyncGroupRequest(
            group_id=GROUP, member_id=member_id, generation_id=generation_id, assignments=named
        )
        answer, _ = await self.cluster.channel.call(methods.SYNC_GROUP, request, timeout_ms=CALL_TIMEOUT_MS)
        return answer

    async def heartbeat(self, member_id: str, generation_id: int) -> E:
        request = pb.HeartbeatRequest(group_id=GROUP, member_id=member_id, generation_id=generation_id)
        return E((await self.cluster.call(methods.HEARTBEAT, request)).error_code)

    async def stable(self) -> tuple[str, str]:
        """Leader and follower of a stable group in generation 1."""
        joins = await asyncio.gather(self.join(), self.join())
        leader, follower = joins[0].leader, next(each.member_id for each in joins if each.member_id != joins[0].leader)
        both = {leader: b"one", follower: b"two"}
        synced = await asyncio.gather(self.sync(follower, 1), self.sync(leader, 1, both))
        assert [answer.assignment for answer in synced] == [b"two", b"one"]
        return leader, follower

    async def state(self) -> str:
        answer = await self.cluster.call(methods.DESCRIBE_GROUPS, pb.DescribeGroupsRequest(group_ids=[GROUP]))
        return answer.groups[0].group_state


def elapsed_s(since: float) -> float:
    return asyncio.get_running_loop().time() - since


def test_joins_and_syncs_wait_at_the_coordinator() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        began = asyncio.get_running_loop().time()
        leader, follower = await Members(cluster).stable()
        assert elapsed_s(began) == pytest.approx(6.0, abs=0.1)  # group.initial.rebalance.delay.ms, twice
        assert leader != follower
        await cluster.node.stop(0)

    run_virtually(main)


def test_silent_members_expire_and_heartbeating_members_do_not() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        members = Members(cluster)
        leader, follower = await members.stable()
        for _ in range(4):
            assert await members.heartbeat(leader, 1) is E.NONE
            await asyncio.sleep(2.4)
        await asyncio.sleep(0.5)
        assert await members.heartbeat(leader, 1) is E.REBALANCE_IN_PROGRESS
        assert await members.heartbeat(follower, 1) is E.UNKNOWN_MEMBER_ID
        answer = await members.join(leader)
        assert answer.generation_id == 2
        await asyncio.sleep(SESSION_MS / 1000 + 0.1)
        assert await members.state() == "Empty"
        await cluster.node.stop(0)

    run_virtually(main)


def test_members_carry_on_after_a_restart_and_do_not_expire_for_what_could_not_be_heard() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        members = Members(cluster)
        leader, follower = await members.stable()
        await asyncio.sleep(SESSION_MS / 1000 - 0.1)
        await cluster.restart()
        await asyncio.sleep(SESSION_MS / 1000 - 0.1)
        assert await members.heartbeat(follower, 1) is E.NONE
        assert await members.heartbeat(leader, 1) is E.NONE
        assert (await members.sync(follower, 1)).assignment == b"two"
        assert await members.state() == "Stable"
        await asyncio.sleep(SESSION_MS / 1000 + 0.1)
        assert await members.state() == "Empty"
        await cluster.node.stop(0)

    run_virtually(main)


def test_waiting_calls_are_refused_when_the_coordinator_stops() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        members = Members(cluster)
        leader, follower = await members.stable()
        joining = asyncio.ensure_future(members.join())
        await asyncio.sleep(0.1)
        again = await asyncio.gather(asyncio.ensure_future(cluster.node.stop(1_000)), joining)
        assert E(again[1].error_code) is E.NOT_COORDINATOR
        cluster.node = cluster._node()
        await cluster.node.start()
        assert await members.heartbeat(leader, 1) is E.NONE
        assert await members.heartbeat(follower, 1) is E.NONE
        await cluster.node.stop(0)

    run_virtually(main)


def test_an_assignment_that_cannot_be_written_is_given_to_no_member() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        members = Members(cluster)
        leader, follower = await members.stable()
        await asyncio.gather(members.join(leader), members.join(follower))
        waiting = asyncio.ensure_future(members.sync(follower, 2))
        await asyncio.sleep(0.1)
        cluster.disk.fail_next_writes(1)
        answer = await members.sync(leader, 2, {leader: b"new", follower: b"new"})
        assert E(answer.error_code) is E.COORDINATOR_NOT_AVAILABLE
        assert E((await waiting).error_code) is E.NOT_COORDINATOR
        assert cluster.node.problems()
        assert await members.heartbeat(leader, 2) is E.ILLEGAL_GENERATION  # the rebalance is forgotten
        assert await members.heartbeat(leader, 1) is E.NONE
        assert (await members.sync(follower, 1)).assignment == b"two"
        assert cluster.node.problems()  # nothing was written since
        joins = await asyncio.gather(members.join(leader), members.join(follower))
        assert {answer.generation_id for answer in joins} == {2}
        assert cluster.node.problems()
        assert E((await members.sync(leader, 2, {})).error_code) is E.NONE
        assert not cluster.node.problems()
        await cluster.node.stop(0)

    run_virtually(main)


def test_while_the_disk_is_full_rebalances_go_on_and_the_store_is_loaded_once() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        cluster.disk.needs_mending = True
        await cluster.start()
        await cluster.create_topic("t", 1)
        members = Members(cluster)
        leader, follower = await members.stable()
        loads: list[float] = []
        core = cluster.node.core
        assert core is not None
        on_reload = core.on_reload

        def count() -> None:
            loads.append(elapsed_s(0))
            on_reload()

        core.on_reload = count
        cluster.disk.is_full = True
        assert await commit(cluster, 0) is E.COORDINATOR_NOT_AVAILABLE
        assert len(loads) == 1, "the write that failed was applied in memory"
        waiting = asyncio.ensure_future(members.join(leader))
        for offset in range(10):
            assert await commit(cluster, offset) is E.COORDINATOR_NOT_AVAILABLE
            assert await members.heartbeat(follower, 1) is E.REBALANCE_IN_PROGRESS
        assert (await members.join(follower)).generation_id == (await waiting).generation_id == 2
        assert len(loads) == 1 and cluster.node.problems()
        cluster.disk.is_full = False
        await asyncio.sleep(1.5)  # the store is mended each second
        assert not cluster.node.problems()
        assert await commit(cluster, 5) is E.NONE
        both = {leader: b"new", follower: b"new"}
        assert (await members.sync(leader, 2, both)).assignment == b"new"
        assert len(loads) == 1
        await cluster.node.stop(0)

    run_virtually(main)


async def commit(cluster: CoordinatorCluster, offset: int) -> E:
    request = pb.OffsetCommitRequest(group_id="other", generation_id_or_member_epoch=-1, api_version=9)
    request.offsets.add(topic_name="t", partition=0, committed_offset=offset, committed_leader_epoch=-1)
    answer = await cluster.call(methods.OFFSET_COMMIT, request)
    return E(answer.error_code or answer.results[0].error_code)


def test_sessions_start_anew_when_the_store_is_back() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        stores: list[UnreadableStore] = []

        def open_store(name: str) -> UnreadableStore:
            stores.append(UnreadableStore(cluster.disk.open_store(name)))
            return stores[-1]

        cluster.open_store = open_store
        await cluster.start()
        members = Members(cluster)
        leader, follower = await members.stable()
        await asyncio.sleep(SESSION_MS / 1000 - 1)
        stores[0].failing_writes, stores[0].failing_reads = 1, 3
        topic = await cluster.create_topic("x")
        assert E(topic.error_code) is E.KAFKA_STORAGE_ERROR
        assert await members.heartbeat(leader, 1) is E.COORDINATOR_NOT_AVAILABLE
        await asyncio.sleep(3.5)
        assert not stores[0].failing_reads
        await asyncio.sleep(SESSION_MS / 1000 - 2)
        assert await members.heartbeat(leader, 1) is E.NONE
        assert await members.heartbeat(follower, 1) is E.NONE
        await cluster.node.stop(0)

    run_virtually(main)


def test_every_call_has_an_answer_while_the_store_cannot_be_read() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        stores: list[UnreadableStore] = []

        def open_store(name: str) -> UnreadableStore:
            stores.append(UnreadableStore(cluster.disk.open_store(name)))
            return stores[-1]

        cluster.open_store = open_store
        await cluster.start()
        members = Members(cluster)
        stores[0].failing_writes, stores[0].failing_reads = 1, 1_000
        await cluster.create_topic("x")
        leave = pb.LeaveGroupRequest(group_id=GROUP, members=[pb.LeaveGroupRequest.MemberIdentity(member_id="m")])
        codes = [
            (await members.join()).error_code,
            (await members.sync("m", 1)).error_code,
            await members.heartbeat("m", 1),
            (await cluster.call(methods.LEAVE_GROUP, leave)).error_code,
            (await cluster.call(methods.DESCRIBE_GROUPS, pb.DescribeGroupsRequest(group_ids=["g"])))
            .groups[0]
            .error_code,
            (await cluster.call(methods.DELETE_GROUPS, pb.DeleteGroupsRequest(group_ids=["g"]))).results[0].error_code,
            (await cluster.call(methods.OFFSET_DELETE, pb.OffsetDeleteRequest(group_id="g"))).error_code,
            (await cluster.call(methods.LIST_GROUPS, pb.ListGroupsRequest())).error_code,
        ]
        assert codes == [E.COORDINATOR_NOT_AVAILABLE] * len(codes)
        await cluster.node.stop(0)

    run_virtually(main)


def test_a_caller_that_has_gone_does_not_stop_the_group() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        members = Members(cluster)
        gone = asyncio.ensure_future(members.join())
        await asyncio.sleep(0.1)
        gone.cancel()
        with pytest.raises((asyncio.CancelledError, CallFailed)):
            await gone
        other = await members.join()
        assert other.generation_id == 1
        for _ in range(4):
            await members.heartbeat(other.member_id, 1)
            await asyncio.sleep(4.9)
        answer = await members.join(other.member_id)
        assert len(answer.members) == 1
        await cluster.node.stop(0)

    run_virtually(main)


def test_groups_are_deleted_each_once() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        await Members(cluster).join(version=9)
        request = pb.DeleteGroupsRequest(group_ids=[GROUP, "none", GROUP])
        answer = await cluster.call(methods.DELETE_GROUPS, request)
        assert [(result.group_id, E(result.error_code)) for result in answer.results] == [
            (GROUP, E.NONE),
            ("none", E.GROUP_ID_NOT_FOUND),
        ]
        await cluster.node.stop(0)

    run_virtually(main)
