"""Registration, epochs, state partitions and the views that watchers get."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.catalog.starts import STARTS_KEPT
from kshare_coordinator.machine.catalog.view import catalog_answer
from kshare_coordinator.machine.state import CHANGE_LOG_LIMIT
from kshare_core.errors import ErrorCode, KafkaError
from kshare_rpc.catalog import CatalogView, next_view
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver


@pytest.mark.parametrize(
    ("role", "fields"),
    [
        (pb.ROLE_UNSPECIFIED, {}),
        (pb.ROLE_COORDINATOR, {}),
        (pb.ROLE_LEADER, {"node_id": -1}),
        (pb.ROLE_LEADER, {"incarnation": ""}),
        (pb.ROLE_LEADER, {"rpc_address": ""}),
        (pb.ROLE_GATEWAY, {"advertised_host": ""}),
        (pb.ROLE_GATEWAY, {"advertised_port": 0}),
        (pb.ROLE_GATEWAY, {"advertised_port": 70_000}),
    ],
)
def test_a_node_must_identify_itself(role: pb.Role.ValueType, fields: dict[str, int | str]) -> None:
    driver = CoordinatorDriver()
    with pytest.raises(KafkaError) as refusal:
        driver.register(role, **fields)  # type: ignore[arg-type]
    assert refusal.value.code is ErrorCode.INVALID_REQUEST
    assert driver.state.nodes == {}


def test_epochs_only_grow_and_the_same_incarnation_keeps_its_own() -> None:
    driver = CoordinatorDriver()
    first = driver.register(pb.ROLE_LEADER, 1, "one")
    assert first.lease_ms == 10_000
    assert driver.register(pb.ROLE_LEADER, 1, "one") == first
    assert driver.record_count == 0
    other = driver.register(pb.ROLE_GATEWAY, 1, "one")
    driver.restart()
    second = driver.register(pb.ROLE_LEADER, 1, "two")
    assert first.node_epoch < other.node_epoch < second.node_epoch
    assert driver.state.nodes[pb.ROLE_LEADER, 1].incarnation == "two"


def expire(driver: CoordinatorDriver, role: pb.Role.ValueType, node_id: int, incarnation: str) -> None:
    driver.run(commands.ExpireNode(role=role, node_id=node_id, incarnation=incarnation))


def test_a_lease_that_ran_out_ends_only_its_own_incarnation() -> None:
    driver = CoordinatorDriver()
    driver.register(pb.ROLE_LEADER, 1, "one")
    driver.register(pb.ROLE_LEADER, 1, "two")
    expire(driver, pb.ROLE_LEADER, 1, "one")
    assert (pb.ROLE_LEADER, 1) in driver.state.nodes
    expire(driver, pb.ROLE_LEADER, 1, "two")
    assert driver.state.nodes == {}
    assert driver.load().state == driver.state


def test_leader_epochs_never_fall() -> None:
    driver = CoordinatorDriver()
    driver.register(pb.ROLE_LEADER, 1, "one")
    topic_id = driver.create_topic("t", 1)

    def epoch() -> int:
        return catalog_answer(driver.state, 0).topics[0].partitions[0].leader_epoch

    seen = [epoch()]
    expire(driver, pb.ROLE_LEADER, 1, "one")
    seen.append(epoch())
    driver.restart()
    driver.register(pb.ROLE_LEADER, 2, "other")
    seen.append(epoch())
    node_epoch = driver.register(pb.ROLE_LEADER, 1, "two").node_epoch
    seen.append(epoch())
    assert seen == sorted(seen)
    assert seen[-1] == node_epoch > seen[0]
    expire(driver, pb.ROLE_LEADER, 1, "two")
    assert epoch() == node_epoch
    assert driver.state.topics[topic_id].placements[0].leader_node_id == 1, "the data is there"


def test_state_partitions_are_sticky_and_owned_by_the_least_loaded() -> None:
    driver = CoordinatorDriver(state_partitions=5)
    assert driver.state.state_partition_owners == {}
    driver.register(pb.ROLE_SHARE_COORDINATOR, 3, "one")
    assert driver.state.state_partition_owners == dict.fromkeys(range(5), 3)
    driver.register(pb.ROLE_SHARE_COORDINATOR, 1, "one")
    expire(driver, pb.ROLE_SHARE_COORDINATOR, 3, "one")
    assert driver.state.state_partition_owners == dict.fromkeys(range(5), 3), "the data is there"


def test_what_is_fixed_at_the_first_start_stays() -> None:
    driver = CoordinatorDriver(state_partitions=7)
    driver.restart()
    driver.run(commands.Start(start_id="first", cluster_id="another", state_partition_count=9))
    assert (driver.state.cluster_id, driver.state.state_partition_count) == ("cluster", 7)
    assert driver.record_count == 1, "the start itself"


def test_each_start_is_known_with_the_version_at_which_it_began() -> None:
    driver = CoordinatorDriver()
    fixed = driver.state.version
    driver.create_topic("orders")
    for start_id in ("second", "third"):
        driver.restart()
        driver.run(commands.Start(start_id=start_id, cluster_id="cluster", state_partition_count=50))
    view = next_view(CatalogView(), catalog_answer(driver.state, 0))
    assert view.starts == (("first", 0), ("second", fixed + 1), ("third", fixed + 1))
    driver.create_topic("payments")
    later = next_view(view, catalog_answer(driver.state, view.version))
    assert (later.version, later.starts) == (view.version + 1, view.starts), "a change alone brings them too"
    for number in range(STARTS_KEPT):
        driver.run(commands.Start(start_id=str(number), cluster_id="cluster", state_partition_count=50))
    starts = [start.start_id for start in catalog_answer(driver.state, 0).starts]
    assert starts == [str(number) for number in range(STARTS_KEPT)]


def test_producer_id_blocks_are_never_given_twice() -> None:
    driver = CoordinatorDriver()
    first = driver.run(commands.AllocateProducerIds())
    driver.restart()
    assert (first, driver.run(commands.AllocateProducerIds())) == (range(1000), range(1000, 2000))


def follow(view: CatalogView, driver: CoordinatorDriver) -> tuple[CatalogView, bool]:
    answer = catalog_answer(driver.state, view.version)
    return next_view(view, answer), answer.full


def whole(driver: CoordinatorDriver) -> CatalogView:
    return next_view(CatalogView(), catalog_answer(driver.state, 0))


def set_group_config(driver: CoordinatorDriver, operation: int) -> None:
    change = pb.IncrementalAlterConfigsRequest.AlterableConfig(
        name="share.record.lock.duration.ms", config_operation=operation, value="20000"
    )
    resource = pb.IncrementalAlterConfigsRequest.Resource(resource_type=32, resource_name="g", configs=[change])
    driver.run(commands.IncrementalAlterConfigs(request=pb.IncrementalAlterConfigsRequest(resources=[resource])))


def test_a_follower_of_deltas_sees_what_a_whole_view_shows() -> None:
    driver = CoordinatorDriver()
    driver.create_topic("early", 1)
    view, full = follow(CatalogView(), driver)
    assert view == whole(driver)
    steps: list[Callable[[], object]] = [
        lambda: driver.register(pb.ROLE_LEADER, 1, "one"),
        lambda: driver.create_topic("t", 2),
        lambda: driver.create_topic("u", 1),
        lambda: driver.delete("t"),
        lambda: set_group_config(driver, 0),
        lambda: driver.register(pb.ROLE_LEADER, 1, "two"),
        lambda: driver.register(pb.ROLE_SHARE_COORDINATOR, 1, "one"),
        lambda: expire(driver, pb.ROLE_LEADER, 1, "two"),
    ]
    for number, step in enumerate(steps):
        step()
        if number % 3 != 1:  # now and then several versions together
            view, full = follow(view, driver)
            assert not full
            assert view == whole(driver)
    set_group_config(driver, 1)
    view, full = follow(view, driver)
    assert (full, dict(view.group_configs)) == (False, {})


def test_versions_count_decisions_that_change_the_catalog() -> None:
    driver = CoordinatorDriver()
    before = driver.state.version
    driver.create_topic("t", 3)
    driver.heartbeat("m", 0, ["t"])
    driver.initialize_all()
    assert driver.state.version == before + 1


def test_a_follower_too_far_behind_or_ahead_gets_a_full_view() -> None:
    driver = CoordinatorDriver()
    driver.register(pb.ROLE_LEADER, 1, "0")
    version = driver.state.version
    for number in range(CHANGE_LOG_LIMIT):
        driver.register(pb.ROLE_GATEWAY, 1, str(number))
    assert not catalog_answer(driver.state, version).full
    driver.register(pb.ROLE_GATEWAY, 1, "last")
    assert catalog_answer(driver.state, version).full
    assert catalog_answer(driver.state, driver.state.version + 1).full
    driver.restart()
    assert catalog_answer(driver.state, driver.state.version - 1).full, "a restart forgets the changes"
    same = catalog_answer(driver.state, driver.state.version)
    assert (same.full, same.nodes_changed, len(same.topics)) == (False, False, 0)


def test_a_leader_gets_an_epoch_above_all_that_its_disk_has_seen() -> None:
    """The coordinator's store is an older copy: its counter would give epochs again that records have already."""
    driver = CoordinatorDriver()
    node = pb.Node(role=pb.ROLE_LEADER, node_id=1, incarnation="one", rpc_address="host:1")
    request = pb.RegisterNodeRequest(node=node, highest_leader_epoch=41)
    assert driver.run(commands.RegisterNode(request=request)).node_epoch == 42
    assert driver.register(pb.ROLE_GATEWAY, 2).node_epoch == 43
    node.incarnation = "two"
    lower = pb.RegisterNodeRequest(node=node, highest_leader_epoch=7)
    assert driver.run(commands.RegisterNode(request=lower)).node_epoch == 44
    for hostile in (-1, 2**31 - 1):
        with pytest.raises(KafkaError, match="the highest leader epoch"):
            driver.run(commands.RegisterNode(request=pb.RegisterNodeRequest(node=node, highest_leader_epoch=hostile)))


def test_no_producer_id_is_given_out_again_that_a_leaders_logs_have_seen() -> None:
    """The coordinator's store is an older copy: its counter would give ids again that logs know already."""
    driver = CoordinatorDriver()
    node = pb.Node(role=pb.ROLE_LEADER, node_id=1, incarnation="one", rpc_address="host:1")

    def register(end: int) -> None:
        driver.run(commands.RegisterNode(request=pb.RegisterNodeRequest(node=node, producer_id_end=end)))

    assert driver.run(commands.AllocateProducerIds()) == range(1_000)
    register(5_000)
    driver.restart()
    assert driver.run(commands.AllocateProducerIds()) == range(5_000, 6_000)
    register(7_000)
    assert driver.run(commands.AllocateProducerIds()) == range(7_000, 8_000), "the same incarnation reports more"
    register(3_000)
    assert driver.run(commands.AllocateProducerIds()) == range(8_000, 9_000)
    for hostile in (-1, (1 << 53) + 1):
        with pytest.raises(KafkaError, match="the end of the seen producer ids"):
            register(hostile)
