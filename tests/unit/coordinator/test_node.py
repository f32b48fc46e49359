"""The coordinator as a role, on virtual time: creation flow against share coordinators, leases, sessions, bad disks."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
import uvloop

from kshare_coordinator.deadlines import Deadlines
from kshare_core.errors import ErrorCode as E
from kshare_core.errors import StorageFailure
from kshare_core.identifiers import SharePartitionKey, state_partition_of
from kshare_rpc.catalog_follower import CatalogFollower
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_runtime.ports import Write
from support.coordinator.cluster import CoordinatorCluster, run_virtually
from support.coordinator.driver import assigned
from support.runtime.unreadable_store import UnreadableStore
from support.simulation.loop import Incarnation, VirtualLoop


def test_first_record_soon_after_the_first_heartbeat() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        fake = await cluster.add_share_coordinator(1)
        topic = await cluster.create_topic("t", 3)
        first = await cluster.heartbeat("m", 0, ["t"])
        assert (first.error_code, first.member_epoch, assigned(first)) == (0, 2, {})
        await asyncio.sleep(first.heartbeat_interval_ms / 1000)
        second = await cluster.heartbeat("m", 2)
        assert (second.member_epoch, assigned(second)) == (3, {"t": [0, 1, 2]})
        assert fake.state == {("group", topic.topic_id, partition): (2, -1) for partition in range(3)}
        assert len(fake.initialized) == 1, "merged into one request"
        await cluster.node.stop(0)

    run_virtually(main)


def test_each_owner_gets_one_request_for_its_own_share_partitions() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster({"share.coordinator.state.topic.num.partitions": "4"})
        await cluster.start()
        await cluster.add_share_coordinator(1)
        await cluster.add_share_coordinator(2)
        await cluster.watch(pb.ROLE_SHARE_COORDINATOR, 1, 0, 0)
        view = await cluster.watch(pb.ROLE_SHARE_COORDINATOR, 2, 0, 0)
        owners = {owner.state_partition: owner.node_id for owner in view.state_partition_owners}
        topic = await cluster.create_topic("t", 20)
        await cluster.heartbeat("m", 0, ["t"])
        await asyncio.sleep(0.2)
        for node_id, fake in cluster.share_coordinators.items():
            mine = {
                partition
                for partition in range(20)
                if owners[state_partition_of(SharePartitionKey("group", topic.topic_id, partition), 4)] == node_id
            }
            assert {key[2] for key in fake.state} == mine
            assert len(fake.initialized) == (1 if mine else 0)
        assert assigned(await cluster.heartbeat("m", 2)) == {"t": list(range(20))}

    run_virtually(main)


def test_failures_are_tried_again_with_longer_and_longer_pauses() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster({"group.share.initialize.retry.interval.ms": "500"})
        await cluster.start()
        fake = await cluster.add_share_coordinator(1)
        fake.refusals = [E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS, *[E.COORDINATOR_NOT_AVAILABLE] * 3]
        await cluster.create_topic("t", 1)
        await cluster.heartbeat("m", 0, ["t"])
        await asyncio.sleep(1.9)
        assert assigned(await cluster.heartbeat("m", 2, ["t"])) == {"t": [0]}
        times = [at for at, _ in fake.initialized]
        pauses = [round(later - earlier, 3) for earlier, later in pairwise(times)]
        assert pauses == [0.1, 0.2, 0.4, 0.5, 0.5]
        assert {request.partitions[0].state_epoch for _, request in fake.initialized} == {2}

    run_virtually(main)


@pytest.mark.parametrize("code", [E.COORDINATOR_LOAD_IN_PROGRESS, E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE])
def test_pauses_stay_short_while_a_share_coordinator_is_not_ready_yet(code: E) -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        fake = await cluster.add_share_coordinator(1)
        fake.refusals = [code] * 20
        await cluster.create_topic("t", 1)
        await cluster.heartbeat("m", 0, ["t"])
        await asyncio.sleep(10)
        assert assigned(await cluster.heartbeat("m", 2, ["t"])) == {"t": [0]}
        times = [at for at, _ in fake.initialized]
        pauses = [round(later - earlier, 3) for earlier, later in pairwise(times)]
        assert pauses == [0.1, 0.2, 0.4, *[0.5] * 17]

    run_virtually(main)


def test_a_share_coordinator_that_comes_late_is_used_at_once() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        await cluster.create_topic("t", 1)
        await cluster.heartbeat("m", 0, ["t"])
        await asyncio.sleep(20)
        await cluster.add_share_coordinator(1)
        await asyncio.sleep(0.01)
        assert assigned(await cluster.heartbeat("m", 2)) == {"t": [0]}

    run_virtually(main)


def test_concurrent_joins_send_one_initialization() -> None:
    """KAFKA-19204."""

    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        fake = await cluster.add_share_coordinator(1)
        fake.delay_ms = 1000
        await cluster.create_topic("t", 5)
        await asyncio.gather(*(cluster.heartbeat(f"m{number}", 0, ["t"]) for number in range(10)))
        await asyncio.sleep(0.5)
        await cluster.heartbeat("late", 0, ["t"])
        await asyncio.sleep(2)
        assert len(fake.initialized) == 1
        epoch = (await cluster.describe()).group_epoch
        assert assigned(await cluster.heartbeat("late", epoch)) is not None

    run_virtually(main)


def test_an_interrupted_initialization_goes_on_after_a_restart() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        fake = await cluster.add_share_coordinator(1)
        fake.refusals = [E.COORDINATOR_NOT_AVAILABLE] * 2
        await cluster.create_topic("t", 1)
        await cluster.heartbeat("m", 0, ["t"])
        await cluster.restart()
        await asyncio.sleep(1)
        assert assigned(await cluster.heartbeat("m", 2)) == {"t": [0]}

    run_virtually(main)


def test_newer_state_is_kept_and_taken_over() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        fake = await cluster.add_share_coordinator(1)
        topic = await cluster.create_topic("t", 2)
        fake.state["group", topic.topic_id, 1] = (9, 1234)
        await cluster.heartbeat("m", 0, ["t"])
        await asyncio.sleep(0.1)
        answer = await cluster.heartbeat("m", 2)
        assert (answer.member_epoch, assigned(answer)) == (3, {"t": [0, 1]})
        assert fake.state["group", topic.topic_id, 1] == (9, 1234), "the position is not lost"

    run_virtually(main)


def test_state_above_which_no_group_can_go_on_does_no_harm_to_the_others() -> None:
    """As an older version stored it for a client: the group's epochs would not fit into their fields."""

    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        fake = await cluster.add_share_coordinator(1)
        topic = await cluster.create_topic("t", 2)
        fake.state["group", topic.topic_id, 1] = (2**31 - 1, 1234)
        await cluster.heartbeat("m", 0, ["t"])
        await asyncio.sleep(0.1)
        assert assigned(await cluster.heartbeat("m", 2)) == {"t": [0]}
        del fake.state["group", topic.topic_id, 1]
        await asyncio.sleep(40)
        answer = await cluster.heartbeat("m", (await cluster.describe()).group_epoch)
        assert assigned(answer) == {"t": [0, 1]}

    run_virtually(main)


def test_the_state_of_a_deleted_topic_is_deleted() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        fake = await cluster.add_share_coordinator(1)
        await cluster.create_topic("t", 2)
        await cluster.create_topic("u", 1)
        await cluster.heartbeat("m", 0, ["t", "u"])
        await asyncio.sleep(0.1)
        await cluster.heartbeat("m", 2)
        fake.refusals = [E.COORDINATOR_NOT_AVAILABLE]
        assert (await cluster.delete_topic("t")).error_code == 0
        await cluster.restart()
        await asyncio.sleep(1)
        assert len(fake.state) == 1
        assert assigned(await cluster.heartbeat("m", 2)) == {"u": [0]}
        sent = len(fake.deleted)
        await cluster.restart()
        await asyncio.sleep(1)
        assert len(fake.deleted) == sent, "it is done"
        orders = [(fake.initialized[0][1].sender, fake.initialized[0][1].sent_number)]
        orders += [(each.sender, each.sent_number) for each in fake.deleted]
        lives = dict.fromkeys(sender for sender, _ in orders)
        assert len(lives) == 2 and all(lives), "a process has a name of its own, under which its requests are ordered"
        for life in lives:
            numbers = [number for sender, number in orders if sender == life]
            assert numbers == sorted(set(numbers))

    run_virtually(main)


def test_a_silent_member_expires_and_a_heard_one_does_not() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        await cluster.create_topic("t", 1)
        await cluster.heartbeat("silent", 0, ["t"])
        await cluster.heartbeat("heard", 0, ["t"])
        for _ in range(8):
            await asyncio.sleep(5)
            await cluster.heartbeat("heard", (await cluster.describe()).group_epoch)
        assert [member.member_id for member in (await cluster.describe()).members] == ["heard", "silent"]
        await asyncio.sleep(5.1)
        assert [member.member_id for member in (await cluster.describe()).members] == ["heard"]
        answer = await cluster.heartbeat("silent", 1)
        assert E(answer.error_code) is E.UNKNOWN_MEMBER_ID
        await asyncio.sleep(45)
        assert (await cluster.describe()).group_state == "Empty"

    run_virtually(main)


def test_a_restart_gives_every_member_a_full_session() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        await cluster.create_topic("t", 1)
        await cluster.heartbeat("m", 0, ["t"])
        await asyncio.sleep(44)
        await cluster.restart()
        await asyncio.sleep(44)
        answer = await cluster.heartbeat("m", 2)
        assert (answer.error_code, answer.member_epoch) == (0, 2)
        await asyncio.sleep(46)
        assert E((await cluster.heartbeat("m", 2)).error_code) is E.UNKNOWN_MEMBER_ID

    run_virtually(main)


def test_leases() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        assert (await cluster.register(pb.ROLE_LEADER, 1, "leader:1")).lease_ms == 10_000
        await cluster.register(pb.ROLE_LEADER, 2, "leader:2")
        for _ in range(4):
            await asyncio.sleep(3)
            view = await cluster.watch(pb.ROLE_LEADER, 1, 0, 0)
        assert [node.node_id for node in view.nodes] == [1]
        gone = await cluster.watch(pb.ROLE_LEADER, 2, 0, 0)
        assert E(gone.error_code) is E.UNKNOWN_MEMBER_ID
        assert E((await cluster.watch(pb.ROLE_LEADER, 1, 0, 0, "other")).error_code) is E.UNKNOWN_MEMBER_ID
        await asyncio.sleep(9)
        await cluster.restart()
        await asyncio.sleep(9)
        assert (await cluster.watch(pb.ROLE_LEADER, 1, 0, 0)).error_code == 0, "a restart renews all leases"
        await asyncio.sleep(11)
        assert (await cluster.watch(pb.ROLE_LEADER, 1, 0, 0)).error_code != 0

    run_virtually(main)


def test_the_lease_of_a_replaced_incarnation_ends_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        await cluster.register(pb.ROLE_LEADER, 1, "leader:1", "old")
        await asyncio.sleep(9.9)
        await cluster.register(pb.ROLE_LEADER, 1, "leader:1", "new")
        version = (await cluster.watch(pb.ROLE_LEADER, 1, 0, 0, "new")).version
        await asyncio.sleep(5)
        assert (await cluster.watch(pb.ROLE_LEADER, 1, 0, 0, "new")).version == version
        assert "did not heartbeat" not in caplog.text
        await asyncio.sleep(11)
        assert caplog.text.count("did not heartbeat") == 1

    run_virtually(main)


def test_a_watch_waits_for_a_change_and_not_longer_than_asked() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        cluster = CoordinatorCluster()
        await cluster.start()
        await cluster.register(pb.ROLE_LEADER, 1, "leader:1")
        version = (await cluster.watch(pb.ROLE_LEADER, 1, 0, 5000)).version
        began = loop.time()
        nothing = await cluster.watch(pb.ROLE_LEADER, 1, version, 2000)
        assert (nothing.version, nothing.full, loop.time() - began) == (version, False, 2.0)
        waiting = asyncio.ensure_future(cluster.watch(pb.ROLE_LEADER, 1, version, 3000))
        await asyncio.sleep(1)
        await cluster.create_topic("t", 1)
        answer = await waiting
        assert loop.time() - began == 3.0
        assert ([topic.name for topic in answer.topics], answer.version) == (["t"], version + 1)

    run_virtually(main)


def test_a_watch_ends_when_its_node_is_replaced() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        await cluster.register(pb.ROLE_LEADER, 1, "leader:1", "old")
        version = (await cluster.watch(pb.ROLE_LEADER, 1, 0, 0, "old")).version
        waiting = asyncio.ensure_future(cluster.watch(pb.ROLE_LEADER, 1, version, 3000, "old"))
        await asyncio.sleep(0.1)
        await cluster.register(pb.ROLE_LEADER, 1, "leader:1", "new")
        assert E((await waiting).error_code) is E.UNKNOWN_MEMBER_ID

    run_virtually(main)


def test_a_stopping_coordinator_does_not_wait_for_catalog_watchers() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        cluster = CoordinatorCluster()
        await cluster.start()
        await cluster.register(pb.ROLE_LEADER, 1, "leader:1")
        version = (await cluster.watch(pb.ROLE_LEADER, 1, 0, 0)).version
        waiting = asyncio.ensure_future(cluster.watch(pb.ROLE_LEADER, 1, version, 3000))
        await asyncio.sleep(1)
        began = loop.time()
        await cluster.node.stop(5000)
        answer = await waiting
        assert (answer.version, answer.error_code, loop.time() - began) == (version, 0, 0.0)

    run_virtually(main)


def test_the_follower_of_the_other_roles_keeps_up_through_restarts() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        follower = CatalogFollower(network=cluster.network, coordinator_address="coordinator:1")
        await follower.start(pb.Node(role=pb.ROLE_LEADER, node_id=1, incarnation="x", rpc_address="leader:1"))
        await cluster.create_topic("before", 1)
        await cluster.restart()
        await cluster.create_topic("after", 2)
        answer = await cluster.create_topic("last", 1)
        assert answer.error_code == 0
        await asyncio.sleep(1)
        assert sorted(follower.view.topics_by_name) == ["after", "before", "last"]
        epoch = follower.node_epoch
        await asyncio.sleep(30)
        assert follower.node_epoch == epoch, "its lease never ran out"
        await follower.stop()

    run_virtually(main)


def test_the_catalog_that_is_described_has_every_change_that_was_answered() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        request = pb.IncrementalAlterConfigsRequest()
        resource = request.resources.add(resource_type=32, resource_name="g")
        resource.configs.add(name="share.auto.offset.reset", value="earliest")
        altered = await cluster.call(methods.INCREMENTAL_ALTER_CONFIGS, request)
        assert altered.results[0].error_code == 0 and altered.version > 0
        for _ in range(2):
            described = await cluster.call(methods.DESCRIBE_CATALOG, pb.DescribeCatalogRequest())
            assert (described.error_code, described.version) == (0, altered.version)
            await cluster.restart()

    run_virtually(main)


@pytest.mark.parametrize("method", ["topic", "member", "node", "producer"])
def test_a_write_that_fails_has_no_effect_and_is_answered_so(method: str) -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        await cluster.create_topic("t", 1)
        cluster.disk.fail_next_writes(1)
        if method == "topic":
            assert E((await cluster.create_topic("u", 1)).error_code) is E.KAFKA_STORAGE_ERROR
        elif method == "member":
            assert E((await cluster.heartbeat("m", 0, ["t"])).error_code) is E.COORDINATOR_NOT_AVAILABLE
        elif method == "node":
            answer = await cluster.register(pb.ROLE_LEADER, 1, "leader:1")
            assert E(answer.error_code) is E.KAFKA_STORAGE_ERROR
        else:
            produced = await cluster.call(methods.INIT_PRODUCER_ID, pb.InitProducerIdRequest(producer_id=-1))
            assert (E(produced.error_code), produced.producer_id) == (E.COORDINATOR_NOT_AVAILABLE, -1)
        assert "No space left" in cluster.node.problems()[0]
        assert E((await cluster.describe()).error_code) is E.GROUP_ID_NOT_FOUND
        assert (await cluster.create_topic("u", 1)).error_code == 0
        assert cluster.node.problems() == []

    run_virtually(main)


def test_a_disk_that_fails_as_a_whole_stops_answers_until_it_is_back() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        store = UnreadableStore(cluster.disk.open_store("coordinator"))
        cluster.open_store = lambda name: store
        await cluster.start()
        await cluster.register(pb.ROLE_LEADER, 1, "leader:1")
        await cluster.create_topic("t", 1)
        await cluster.heartbeat("m", 0, ["t"])
        store.failing_writes, store.failing_reads = 1, 3
        assert E((await cluster.create_topic("u", 1)).error_code) is E.KAFKA_STORAGE_ERROR
        assert len(cluster.node.problems()) == 2
        assert E((await cluster.heartbeat("m", 2)).error_code) is E.COORDINATOR_NOT_AVAILABLE
        assert E((await cluster.describe()).error_code) is E.COORDINATOR_NOT_AVAILABLE
        assert E((await cluster.watch(pb.ROLE_LEADER, 1, 0, 0)).error_code) is E.KAFKA_STORAGE_ERROR
        await asyncio.sleep(3.5)
        assert (await cluster.heartbeat("m", 2)).error_code == 0
        view = await cluster.watch(pb.ROLE_LEADER, 1, 0, 0)
        assert [topic.name for topic in view.topics] == ["t"]
        assert (await cluster.create_topic("u", 1)).error_code == 0
        assert cluster.node.problems() == []

    run_virtually(main)


def test_an_expiry_that_could_not_be_written_is_tried_again() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        await cluster.create_topic("t", 1)
        await cluster.heartbeat("m", 0, ["t"])
        cluster.disk.fail_next_writes(2)
        await asyncio.sleep(46)
        assert len((await cluster.describe()).members) == 1
        await asyncio.sleep(2)
        assert len((await cluster.describe()).members) == 0

    run_virtually(main)


@pytest.mark.timeout(30)
def test_producers_may_come_at_any_moment_while_their_ids_are_written() -> None:
    """One in each turn of the loop: one comes when the ids are durable and those who wait do not know it yet."""

    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        loop = asyncio.get_running_loop()
        asked: list[asyncio.Task[pb.InitProducerIdResponse]] = []
        while not asked or not asked[0].done():
            request = cluster.call(methods.INIT_PRODUCER_ID, pb.InitProducerIdRequest(producer_id=-1))
            asked.append(loop.create_task(request))
            await asyncio.sleep(0)
        ids = [answer.producer_id for answer in await asyncio.gather(*asked)]
        assert sorted(ids) == list(range(len(ids)))

    run_virtually(main)


def test_producer_ids() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()

        async def ask(producer_id: int = -1, producer_epoch: int = -1) -> tuple[E, int, int]:
            request = pb.InitProducerIdRequest(producer_id=producer_id, producer_epoch=producer_epoch)
            answer = await cluster.call(methods.INIT_PRODUCER_ID, request)
            return E(answer.error_code), answer.producer_id, answer.producer_epoch

        given = await asyncio.gather(*(ask() for _ in range(1500)))
        assert sorted(given) == [(E.NONE, number, 0) for number in range(1500)]
        assert await ask(7, 0) == (E.NONE, 1500, 0), "as in Kafka: without a transactional id it is always a new one"
        await cluster.restart()
        assert await ask() == (E.NONE, 2000, 0)

    run_virtually(main)


def test_a_store_that_holds_nonsense_ends_the_start() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        store = cluster.disk.open_store("coordinator")
        store.write([Write("coordinator", b"\xff\xff\xff", b"x")])
        store.close()
        with pytest.raises(StorageFailure, match="ffffff"):
            await cluster.start()

    run_virtually(main)


def test_the_cluster_id_is_made_once() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        await cluster.register(pb.ROLE_LEADER, 1, "leader:1")
        first = (await cluster.watch(pb.ROLE_LEADER, 1, 0, 0)).cluster_id
        await cluster.restart()
        assert (await cluster.watch(pb.ROLE_LEADER, 1, 0, 0)).cluster_id == first
        assert len(first) == 22

    run_virtually(main)


def test_deadlines_move_in_both_directions() -> None:
    async def main() -> None:
        expired: list[tuple[float, str]] = []
        loop = asyncio.get_running_loop()
        deadlines: Deadlines[str] = Deadlines(lambda keys: expired.extend((loop.time(), key) for key in keys))
        deadlines.set("later", 5000)
        deadlines.set("earlier", 9000)
        deadlines.set("gone", 1000)
        deadlines.set("later", 8000)
        deadlines.set("earlier", 2000)
        deadlines.remove("gone")
        await asyncio.sleep(20)
        assert expired == [(2.0, "earlier"), (8.0, "later")]
        assert len(deadlines) == 0

    run_virtually(main)


def test_a_deadline_before_now_is_no_stall() -> None:
    """A consumer group's member may join with a negative rebalance timeout; the others' deadlines stay."""

    async def main() -> None:
        expired: list[tuple[float, str]] = []
        loop = asyncio.get_running_loop()
        deadlines: Deadlines[str] = Deadlines(lambda keys: expired.extend((loop.time(), key) for key in keys))
        deadlines.set("other", 2_000)
        deadlines.set("negative", -(2**31))
        await asyncio.sleep(10)
        assert expired == [(0.0, "negative"), (2.0, "other")]

    run_virtually(main)


def test_a_deadline_that_has_come_and_then_another_on_uvloop() -> None:
    """A JoinGroup with a rebalance timeout of 0; uvloop's handle of a timer that is due at once has no `when`."""

    async def main() -> None:
        all_expired = asyncio.get_running_loop().create_future()
        expired: list[str] = []

        def on_expired(keys: list[str]) -> None:
            expired.extend(keys)
            if len(expired) == 2:
                all_expired.set_result(None)

        deadlines: Deadlines[str] = Deadlines(on_expired)
        deadlines.set("at once", 0)
        deadlines.set("soon", 1)
        await all_expired
        assert expired == ["at once", "soon"]

    uvloop.run(main())


def test_after_a_stall_members_get_time_before_they_expire() -> None:
    """SIGSTOP for a minute: the timers fire late, and those who were due get time to be heard."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        process = Incarnation("coordinator", 1)
        expired: list[tuple[float, str]] = []
        deadlines: Deadlines[str] = Deadlines(lambda keys: expired.extend((loop.time(), key) for key in keys))
        loop.run_in(process, deadlines.set, "due soon", 50)
        loop.run_in(process, deadlines.set, "due later", 5000)
        await asyncio.sleep(0.01)
        process.paused = True
        await asyncio.sleep(60)
        loop.resume(process)
        await asyncio.sleep(0.5)
        assert expired == []
        loop.run_in(process, deadlines.set, "due later", 5000)
        await asyncio.sleep(10)
        assert [(round(at, 2), key) for at, key in expired] == [(61.01, "due soon"), (65.51, "due later")]

    run_virtually(main)
