"""Three coordinators on one etcd: which one answers for which partition, and takeover when one of them goes."""

from __future__ import annotations

import asyncio

import pytest

from kshare_coordinator.machine.metadata_partitions import partition_of_group
from kshare_coordinator.metadata.port import GROUP_PARTITIONS
from kshare_core.errors import ErrorCode as E
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.cluster import ADDRESS, CoordinatorCluster, run_virtually
from support.coordinator.several_coordinators import SeveralCoordinators, ShareCoordinatorHost


def test_every_partition_has_one_owner_and_the_view_names_it() -> None:
    several = SeveralCoordinators()

    async def main() -> None:
        await several.start()
        client = await several.client().start()
        await asyncio.sleep(5)
        view = client.follower.view
        assert view.coordinators == {number: f"coordinator-{number}:1" for number in (1, 2, 3)}
        assert view.group_partition_count == GROUP_PARTITIONS
        for partition in range(GROUP_PARTITIONS):
            owner = several.owner(partition)
            assert owner is not None
            assert view.group_partition_address(partition) == f"{owner}:1"
        shares = [
            sum(name == host.name for name in map(several.owner, range(GROUP_PARTITIONS))) for host in several.hosts
        ]
        assert sorted(shares) == [16, 17, 17]
        assert client.follower.active_address == f"{several.active().name}:1"

    several.run(main)


def test_a_coordinator_refuses_a_request_for_a_partition_of_another() -> None:
    several = SeveralCoordinators()

    async def main() -> None:
        await several.start()
        client = await several.client().start()
        assert await client.create_topic("t") == 0
        active = several.active()
        others = [host for host in several.hosts if host is not active]
        for host in others:
            address = f"{host.name}:1"
            registered = await client.at(address, methods.REGISTER_NODE, pb.RegisterNodeRequest())
            assert registered.error_code == E.NOT_COORDINATOR
            assert registered.active_coordinator_address == f"{active.name}:1"
            watched = await client.at(address, methods.WATCH_CATALOG, pb.WatchCatalogRequest())
            assert (watched.error_code, watched.active_coordinator_address) == (E.NOT_COORDINATOR, f"{active.name}:1")
            catalog = await client.at(address, methods.DESCRIBE_CATALOG, pb.DescribeCatalogRequest())
            assert (catalog.error_code, catalog.version) == (E.NOT_COORDINATOR, 0)
            created = await client.at(
                address,
                methods.CREATE_TOPICS,
                pb.CreateTopicsRequest(topics=[pb.CreateTopicsRequest.CreatableTopic(name="n")]),
            )
            assert (created.error_code, created.topics[0].error_code) == (E.NOT_COORDINATOR, E.NOT_COORDINATOR)
            assert f"{active.name}:1" in created.error_message
        group_id = several.group_of(others[0])
        assert await client.commit(group_id, "t", 5) == 0
        for host in (active, others[1]):
            address = f"{host.name}:1"
            fetched = await client.at(address, methods.OFFSET_FETCH, pb.OffsetFetchRequest(group_id=group_id))
            assert fetched.error_code == E.NOT_COORDINATOR
            assert f"{others[0].name}:1" in fetched.error_message
            commit = pb.OffsetCommitRequest(group_id=group_id, generation_id_or_member_epoch=-1)
            commit.offsets.add(topic_name="t", partition=0, committed_offset=9)
            refused = await client.at(address, methods.OFFSET_COMMIT, commit)
            assert [refused.error_code, refused.results[0].error_code] == [E.NOT_COORDINATOR, E.NOT_COORDINATOR]
            own = several.group_of(host)
            described = await client.at(
                address, methods.DESCRIBE_GROUPS, pb.DescribeGroupsRequest(group_ids=[group_id, own])
            )
            codes = {group.group_id: group.error_code for group in described.groups}
            assert codes == {group_id: E.NOT_COORDINATOR, own: E.GROUP_ID_NOT_FOUND}
        assert await client.fetch(group_id, "t") == 5
        listed = await client.at(f"{others[0].name}:1", methods.LIST_GROUPS, pb.ListGroupsRequest())
        assert [group.group_id for group in listed.groups] == [group_id]
        assert partition_of_group(group_id) in listed.group_partitions
        assert len(listed.group_partitions) in (16, 17)

    several.run(main)


@pytest.mark.parametrize("how", ["killed", "stopped", "frozen", "cut off from etcd"])
def test_groups_and_catalog_go_on_elsewhere_with_all_that_was_confirmed(how: str) -> None:
    several = SeveralCoordinators(how)

    async def main() -> None:
        await several.start()
        client = await several.client().start()
        share_coordinator = await ShareCoordinatorHost(several).start()
        assert await client.create_topic("t", 4) == 0
        victim = several.active()
        group_id = several.group_of(victim)
        assert await client.commit(group_id, "t", 5) == 0
        share_group = several.group_of(victim, "share")
        answer = await client.heartbeat(share_group, "m", 0, ["t"])
        while not answer.assignment:
            await asyncio.sleep(0.2)
            answer = await client.heartbeat(share_group, "m", answer.member_epoch)
        before = sorted(answer.assignment[0].partitions)
        if how == "killed":
            victim.crash()
        elif how == "stopped":
            await victim.stop()
        elif how == "frozen":
            victim.pause()
        else:
            several.ways[victim.name].unavailable = True
        began = several.loop.time()
        while several.owner(partition_of_group(group_id)) in (None, victim.name):
            await asyncio.sleep(0.05)
        assert several.loop.time() - began < (0.5 if how == "stopped" else 2 * 2_000 / 1000 + 1)
        assert await client.patiently(lambda: client.fetch(group_id, "t")) == 5
        assert await client.patiently(lambda: client.create_topic("t2")) == 0
        epoch = answer.member_epoch
        again = await client.patiently(lambda: client.heartbeat(share_group, "m", epoch))
        assert (again.error_code, again.member_epoch) == (0, epoch), "the member goes on as it was"
        full = await client.heartbeat(share_group, "m", epoch, ["t"])
        assert sorted(full.assignment[0].partitions) == before == [0, 1, 2, 3]
        assert len(share_coordinator.fake.initialized) == 1
        if how == "frozen":
            victim.resume()
            assert several.owners(partition_of_group(group_id)) != [victim.name]
        await several.settled()

    several.run(main)


def test_one_coordinator_says_that_it_has_everything() -> None:
    cluster = CoordinatorCluster()

    async def main() -> None:
        await cluster.start()
        await cluster.register(pb.ROLE_SHARE_COORDINATOR, 1, "share:1")
        answer = await cluster.watch(pb.ROLE_SHARE_COORDINATOR, 1, 0, 0)
        assert [(node.role, node.node_id, node.rpc_address) for node in answer.coordinators] == [
            (pb.ROLE_COORDINATOR, 1, ADDRESS)
        ]
        assert answer.active_coordinator_address == ADDRESS
        owners = {owner.partition: owner.node_id for owner in answer.group_partition_owners}
        assert owners == dict.fromkeys(range(GROUP_PARTITIONS), 1)
        assert answer.group_partition_count == GROUP_PARTITIONS
        again = await cluster.watch(pb.ROLE_SHARE_COORDINATOR, 1, answer.version, 0)
        assert again.coordinators_version == answer.coordinators_version != 0
        assert list(again.coordinators) == list(answer.coordinators), "complete in every answer"
        listed = await cluster.call(methods.LIST_GROUPS, pb.ListGroupsRequest())
        assert list(listed.group_partitions) == list(range(GROUP_PARTITIONS))

    run_virtually(main)


def test_catalog_watchers_learn_at_once_of_a_new_coordinator() -> None:
    several = SeveralCoordinators(count=2)

    async def main() -> None:
        first, second = several.hosts
        await first.start()
        await several.settled()
        client = await several.client().start()
        before = client.follower.view
        request = pb.WatchCatalogRequest(
            role=pb.ROLE_GATEWAY,
            node_id=1,
            incarnation=client.name,
            after_version=before.version,
            after_coordinators_version=before.coordinators_version,
            max_wait_ms=60_000,
        )
        waiting = asyncio.ensure_future(client.at(f"{first.name}:1", methods.WATCH_CATALOG, request))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        began = several.loop.time()
        second.start()
        answer = await waiting
        assert several.loop.time() - began < 0.5
        assert [node.node_id for node in answer.coordinators] == [1, 2]
        assert answer.coordinators_version != before.coordinators_version

    several.run(main)


def test_a_waiting_join_is_sent_on_when_its_group_goes_to_another_coordinator() -> None:
    several = SeveralCoordinators(count=2, configs={"group.initial.rebalance.delay.ms": "60000"})

    async def main() -> None:
        first, second = several.hosts
        await first.start()
        await several.settled()
        client = await several.client().start()
        joining = {}
        for number in range(10):
            group_id = f"group-{number}"
            request = pb.JoinGroupRequest(
                group_id=group_id,
                session_timeout_ms=30_000,
                rebalance_timeout_ms=60_000,
                protocol_type="consumer",
                protocols=[pb.JoinGroupRequest.Protocol(name="range", metadata=b"m")],
            )
            joining[group_id] = asyncio.ensure_future(client.at(f"{first.name}:1", methods.JOIN_GROUP, request))
        await asyncio.sleep(0.2)
        assert not any(waiting.done() for waiting in joining.values())
        second.start()
        await asyncio.sleep(2)
        moved = [group_id for group_id in joining if several.owner_of_group(group_id) is second]
        assert 0 < len(moved) < len(joining)
        for group_id, waiting in joining.items():
            assert waiting.done() == (group_id in moved)
            if waiting.done():
                assert waiting.result().error_code == E.NOT_COORDINATOR
            else:
                waiting.cancel()

    several.run(main)


def test_sessions_begin_anew_where_a_group_goes_and_then_run_out_as_always() -> None:
    several = SeveralCoordinators(count=2)

    async def main() -> None:
        await several.start()
        client = await several.client().start()
        await ShareCoordinatorHost(several).start()
        assert await client.create_topic("t") == 0
        victim = several.hosts[0]
        group_id = several.group_of(victim)
        answer = await client.heartbeat(group_id, "m", 0, ["t"])
        await asyncio.sleep(40)
        victim.crash()
        await asyncio.sleep(30)
        described = await client.owner(
            group_id, methods.SHARE_GROUP_DESCRIBE, pb.ShareGroupDescribeRequest(group_ids=[group_id])
        )
        assert len(described.groups[0].members) == 1, "silent for 70 s, but for less than 45 s where it could be heard"
        await asyncio.sleep(20)
        again = await client.heartbeat(group_id, "m", answer.member_epoch)
        assert again.error_code == E.UNKNOWN_MEMBER_ID

    several.run(main)


def test_a_member_whose_heartbeat_waits_for_a_write_keeps_its_session() -> None:
    several = SeveralCoordinators(count=1)

    async def main() -> None:
        await several.start()
        client = await several.client().start()
        await ShareCoordinatorHost(several).start()
        assert await client.create_topic("t") == 0
        (host,) = several.hosts
        joined = await client.heartbeat("g", "m", 0, ["t"])
        await asyncio.sleep(1)
        epoch = (await client.heartbeat("g", "m", joined.member_epoch)).member_epoch
        await asyncio.sleep(44.6)
        several.ways[host.name].delay_ms = lambda: 300
        writing = asyncio.ensure_future(client.create_topic("other"))
        await asyncio.sleep(0.2)
        beating = asyncio.ensure_future(client.heartbeat("g", "m", epoch))
        await asyncio.sleep(0.25)  # the session of 45 s is over
        assert not beating.done() and not writing.done()
        assert (await beating).error_code == 0
        several.ways[host.name].delay_ms = lambda: 0
        await asyncio.sleep(1)
        assert (await client.heartbeat("g", "m", epoch)).error_code == 0
        await asyncio.sleep(46)
        assert (await client.heartbeat("g", "m", epoch)).error_code == E.UNKNOWN_MEMBER_ID

    several.run(main)


def test_a_recorded_alteration_is_finished_by_the_next_owner_of_the_group() -> None:
    several = SeveralCoordinators(count=2)

    async def main() -> None:
        first, second = several.hosts
        await first.start()
        await several.settled()
        client = await several.client().start()
        share_coordinator = await ShareCoordinatorHost(several).start()
        assert await client.create_topic("t") == 0
        share_coordinator.fake.delay_ms = 2_500
        altering = {}
        for number in range(6):
            request = pb.AlterShareGroupOffsetsRequest(group_id=f"group-{number}")
            request.topics.add(topic_name="t").partitions.add(partition=0, start_offset=7)
            call = client.at(f"{first.name}:1", methods.ALTER_SHARE_GROUP_OFFSETS, request)
            altering[request.group_id] = asyncio.ensure_future(call)
        await asyncio.sleep(0.2)
        second.start()
        answers = {group_id: await call for group_id, call in altering.items()}
        moved = [group_id for group_id in altering if several.owner_of_group(group_id) is second]
        assert 0 < len(moved) < len(altering)
        for group_id, answer in answers.items():
            code = answer.error_code or answer.results[0].error_code
            assert code == (E.COORDINATOR_NOT_AVAILABLE if group_id in moved else E.NONE)
        await asyncio.sleep(10)
        assert {key[0]: offset for key, (_, offset) in share_coordinator.fake.state.items()} == dict.fromkeys(
            altering, 7
        )
        for group_id in moved:
            offsets = await client.owner(
                group_id,
                methods.DELETE_SHARE_GROUP_OFFSETS,
                pb.DeleteShareGroupOffsetsRequest(group_id=group_id, topic_names=["t"]),
            )
            assert [result.error_code for result in offsets.results] == [0], "it was complete, so it can be deleted"

    several.run(main)


def test_a_write_with_an_unknown_outcome_is_not_answered_as_failed() -> None:
    """Who hears NOT_COORDINATOR asks another coordinator to do it, for nothing was done."""
    several = SeveralCoordinators()

    async def main() -> None:
        await several.start()
        client = await several.client().start()
        active = several.active()
        several.ways[active.name].lose_answers(100)
        topic = pb.CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=-1)
        request = pb.CreateTopicsRequest(topics=[topic])
        answer = await client.at(f"{active.name}:1", methods.CREATE_TOPICS, request)
        assert (answer.error_code, answer.topics[0].error_code) == (0, E.KAFKA_STORAGE_ERROR)
        assert "is unknown" in answer.topics[0].error_message
        active.crash()
        await several.settled()
        assert await client.patiently(lambda: client.create_topic("t")) == E.TOPIC_ALREADY_EXISTS

    several.run(main)
