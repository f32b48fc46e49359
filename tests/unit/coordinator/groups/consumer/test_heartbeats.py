"""Consumer groups of KIP-848 in the machine: every refusal of a heartbeat, epochs, reconciliation, static members."""

from __future__ import annotations

import pytest

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.groups.classic.consumer_protocol import SUBSCRIPTION_LIMIT
from kshare_coordinator.machine.groups.consumer import view as consumer_groups_view
from kshare_coordinator.machine.groups.consumer.requests import (
    EXPRESSION_LENGTH_LIMIT,
    TEXT_LENGTH_LIMIT,
)
from kshare_coordinator.machine.groups.consumer.settings import ConsumerGroupSettings
from kshare_coordinator.machine.groups.consumer.values import LEFT_FOR_A_WHILE_EPOCH, CurrentAssignment, MemberState
from kshare_core.errors import ErrorCode as E
from kshare_core.errors import KafkaError
from kshare_core.internal_topics import CONSUMER_OFFSETS_TOPIC_ID, STATE_TOPIC_ID
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver
from support.groups.consumer_groups import Request, assigned, join_request, request_of, send

NO_INTERVAL = {"group.consumer.assignment.interval.ms": "0"}


@pytest.fixture
def driver() -> CoordinatorDriver:
    return CoordinatorDriver({**NO_INTERVAL, "group.consumer.max.size": "3", "kshare.max.groups": "3"})


@pytest.fixture
def topic(driver: CoordinatorDriver) -> bytes:
    return driver.create_topic("t", 4)


def refusal(driver: CoordinatorDriver, request: Request) -> E:
    rows = dict(driver.rows)
    with pytest.raises(KafkaError) as refused:
        send(driver, request)
    assert driver.rows == rows
    return refused.value.code


def current(driver: CoordinatorDriver, member_id: str) -> CurrentAssignment:
    return driver.state.consumer_groups["group"].current[member_id]


def beat(driver: CoordinatorDriver, member_id: str, **fields: object) -> pb.ConsumerGroupHeartbeatResponse:
    """A heartbeat with the member's epoch."""
    return send(driver, request_of(member_id, current(driver, member_id).member_epoch, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (join_request("", ["t"]), E.INVALID_REQUEST),
        (request_of("", 1, api_version=0), E.INVALID_REQUEST),
        (request_of("", -1, api_version=0), E.INVALID_REQUEST),
        (join_request("x", ["t"], group_id=""), E.INVALID_REQUEST),
        (join_request("x", ["t"], group_id=" "), E.INVALID_REQUEST),
        (join_request("x", ["t"], instance_id=""), E.INVALID_REQUEST),
        (join_request("x", ["t"], rack_id=" "), E.INVALID_REQUEST),
        (join_request("x", ["t"], rebalance_timeout_ms=-1), E.INVALID_REQUEST),
        (join_request("x", ["t"], owned=None), E.INVALID_REQUEST),
        (join_request("x", ["t"], owned={b"t" * 16: [0]}), E.INVALID_REQUEST),
        (join_request("x"), E.INVALID_REQUEST),
        (request_of("x", -2), E.INVALID_REQUEST),
        (request_of("x", -3), E.INVALID_REQUEST),
        (join_request("x" * (TEXT_LENGTH_LIMIT + 1), ["t"]), E.INVALID_REQUEST),
        (join_request("x", [f"t{n}" for n in range(SUBSCRIPTION_LIMIT + 1)]), E.INVALID_REQUEST),
        (join_request("x", ["t" * 2_000_000]), E.INVALID_REQUEST),
        (join_request("x", regex="t" * (EXPRESSION_LENGTH_LIMIT + 1)), E.INVALID_REQUEST),
        (join_request("x", ["t"], assignor="sticky"), E.UNSUPPORTED_ASSIGNOR),
        (join_request("x", regex="("), E.INVALID_REGULAR_EXPRESSION),
        (join_request("x", regex="(?=t)"), E.INVALID_REGULAR_EXPRESSION),
        (request_of("a", 2, regex="("), E.INVALID_REGULAR_EXPRESSION),
        (request_of("x", 1, group_id="none"), E.GROUP_ID_NOT_FOUND),
        (request_of("x", -1, group_id="none"), E.GROUP_ID_NOT_FOUND),
        (request_of("x", -2, group_id="none", instance_id="i"), E.GROUP_ID_NOT_FOUND),
        (request_of("x", 1), E.UNKNOWN_MEMBER_ID),
        (request_of("x", -1), E.UNKNOWN_MEMBER_ID),
        (request_of("x", -1, instance_id="none"), E.UNKNOWN_MEMBER_ID),
        (request_of("x", 1, instance_id="none"), E.UNKNOWN_MEMBER_ID),
        (request_of("x", 1, instance_id="i"), E.FENCED_INSTANCE_ID),
        (request_of("x", -1, instance_id="i"), E.FENCED_INSTANCE_ID),
        (request_of("x", -2, instance_id="i"), E.FENCED_INSTANCE_ID),
        (join_request("x", ["t"], instance_id="i"), E.UNRELEASED_INSTANCE_ID),
        (request_of("a", 9), E.FENCED_MEMBER_EPOCH),
        (request_of("s", 9, instance_id="i"), E.FENCED_MEMBER_EPOCH),
        (request_of("a", 1), E.FENCED_MEMBER_EPOCH),
    ],
)
def test_refused_heartbeats_change_nothing(driver: CoordinatorDriver, topic: bytes, request_: Request, code: E) -> None:
    send(driver, join_request("a", ["t"]))
    send(driver, join_request("s", ["t"], instance_id="i"))
    assert refusal(driver, request_) == code


def test_the_protocol_can_be_switched_off() -> None:
    driver = CoordinatorDriver({"group.coordinator.rebalance.protocols": "classic"})
    assert refusal(driver, join_request("a", ["t"])) == E.UNSUPPORTED_VERSION


def test_limits_of_groups_and_members(driver: CoordinatorDriver, topic: bytes) -> None:
    for member_id in "abc":
        send(driver, join_request(member_id, ["t"]))
    assert refusal(driver, join_request("d", ["t"])) == E.GROUP_MAX_SIZE_REACHED
    assert refusal(driver, join_request("", ["t"], api_version=0)) == E.GROUP_MAX_SIZE_REACHED
    assert send(driver, join_request("a", ["t"])).member_id == "a"
    for group_id in ("second", "third"):
        send(driver, join_request("a", ["t"], group_id=group_id))
    assert refusal(driver, join_request("a", ["t"], group_id="fourth")) == E.GROUP_MAX_SIZE_REACHED


def test_the_first_member_gets_everything_in_its_first_answer(driver: CoordinatorDriver, topic: bytes) -> None:
    answer = send(driver, join_request("a", ["t", "not-there"]))
    assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == ("a", 2, 5000)
    assert assigned(answer) == {topic: [0, 1, 2, 3]}
    assert driver.state.consumer_groups["group"].state == "Stable"
    rows = dict(driver.rows)
    answer = beat(driver, "a")
    assert assigned(answer) is None and driver.record_count == 0 and driver.rows == rows
    assert driver.effects == [commands.SessionRenewed(group_id="group", member_id="a", session_timeout_ms=45_000)]


def test_version_0_leaves_the_choice_of_the_id_to_the_coordinator(driver: CoordinatorDriver, topic: bytes) -> None:
    assert send(driver, join_request("", ["t"], api_version=0)).member_id == "chosen-by-the-coordinator"


def test_a_second_member_gets_its_part_when_the_first_has_given_it_back(
    driver: CoordinatorDriver, topic: bytes
) -> None:
    send(driver, join_request("a", ["t"]))
    answer = send(driver, join_request("b", ["t"]))
    assert assigned(answer) == {} and current(driver, "b").state is MemberState.UNRELEASED_PARTITIONS
    assert (answer.member_epoch, driver.state.consumer_groups["group"].state) == (3, "Reconciling")
    answer = beat(driver, "a")
    assert (answer.member_epoch, assigned(answer)) == (2, {topic: [0, 1]})
    begun = commands.RevocationBegun(group_id="group", member_id="a", member_epoch=2, timeout_ms=60_000)
    assert begun in driver.effects
    assert assigned(beat(driver, "b")) is None
    assert assigned(beat(driver, "a", owned={topic: [0, 1, 2]})) is None
    answer = beat(driver, "a", owned={topic: [0, 1]})
    assert (answer.member_epoch, assigned(answer)) == (3, None)
    assert commands.RevocationEnded(group_id="group", member_id="a", member_epoch=2) in driver.effects
    assert assigned(beat(driver, "b")) == {topic: [2, 3]}
    assert driver.state.consumer_groups["group"].state == "Stable"


def test_a_member_that_does_not_give_back_in_time_is_taken_out(driver: CoordinatorDriver, topic: bytes) -> None:
    send(driver, join_request("a", ["t"]))
    send(driver, join_request("b", ["t"]))
    beat(driver, "a")
    for late in (("a", 1), ("a", 3), ("b", 3), ("nobody", 2)):
        driver.run(commands.ExpireRevocation(group_id="group", member_id=late[0], member_epoch=late[1]))
        assert driver.record_count == 0
    driver.run(commands.ExpireRevocation(group_id="group", member_id="a", member_epoch=2))
    assert "a" not in driver.state.consumer_groups["group"].members
    assert assigned(beat(driver, "b")) == {topic: [0, 1, 2, 3]}


def test_the_timeout_of_a_revocation_that_ended_removes_no_member(driver: CoordinatorDriver, topic: bytes) -> None:
    """The group epoch did not rise while the member gave back what it no longer subscribes to."""
    send(driver, join_request("a", ["t"]))
    driver.create_topic("u", 1)
    beat(driver, "a", names=["u"], rebalance_timeout_ms=60_000)
    epoch = current(driver, "a").member_epoch
    beat(driver, "a", owned={})
    driver.run(commands.ExpireRevocation(group_id="group", member_id="a", member_epoch=epoch))
    assert "a" in driver.state.consumer_groups["group"].members


def test_an_answer_that_was_lost_is_given_again(driver: CoordinatorDriver, topic: bytes) -> None:
    send(driver, join_request("a", ["t"]))
    send(driver, join_request("b", ["t"]))
    beat(driver, "a")
    beat(driver, "a", owned={topic: [0, 1]})  # epoch 3 is in an answer that is lost
    everything = {"names": ["t"], "rebalance_timeout_ms": 60_000}
    answer = send(driver, request_of("a", 2, owned={topic: [0, 1]}, **everything))  # type: ignore[arg-type]
    assert (answer.member_epoch, assigned(answer)) == (3, {topic: [0, 1]})
    assert refusal(driver, request_of("a", 2)) == E.FENCED_MEMBER_EPOCH
    assert refusal(driver, request_of("a", 2, owned={topic: [0, 1, 2]})) == E.FENCED_MEMBER_EPOCH


def test_a_member_that_joins_again_keeps_its_place(driver: CoordinatorDriver, topic: bytes) -> None:
    send(driver, join_request("a", ["t"]))
    answer = send(driver, join_request("a", ["t"]))
    assert (answer.member_epoch, assigned(answer)) == (2, {topic: [0, 1, 2, 3]})


def test_a_member_that_leaves_or_expires_makes_room(driver: CoordinatorDriver, topic: bytes) -> None:
    send(driver, join_request("a", ["t"]))
    send(driver, join_request("b", ["t"]))
    answer = send(driver, request_of("a", -1))
    assert (answer.member_epoch, answer.has_assignment) == (-1, False)
    assert commands.SessionEnded(group_id="group", member_id="a") in driver.effects
    answer = beat(driver, "b")
    assert (answer.member_epoch, assigned(answer)) == (4, {topic: [0, 1, 2, 3]})
    driver.run(commands.ExpireMember(group_id="group", member_id="b"))
    group = driver.state.consumer_groups["group"]
    assert (group.state, group.epoch, group.owners, group.targets) == ("Empty", 5, {}, {})
    driver.run(commands.ExpireMember(group_id="group", member_id="b"))
    assert driver.record_count == 0


def test_a_static_member_comes_back_to_what_it_had_without_a_rebalance(driver: CoordinatorDriver, topic: bytes) -> None:
    send(driver, join_request("a", ["t"], instance_id="i"))
    send(driver, join_request("b", ["t"], instance_id="j"))
    beat(driver, "a", instance_id="i")
    beat(driver, "a", instance_id="i", owned={topic: [0, 1]})
    beat(driver, "b", instance_id="j")
    answer = send(driver, request_of("a", LEFT_FOR_A_WHILE_EPOCH, instance_id="i"))
    assert (answer.member_id, answer.member_epoch) == ("a", -2)
    assert driver.state.consumer_groups["group"].owners.keys() == {(topic, number) for number in range(4)}
    assert refusal(driver, request_of("a", 3, instance_id="i")) == E.FENCED_MEMBER_EPOCH
    epoch = driver.state.consumer_groups["group"].epoch
    answer = send(driver, join_request("a2", ["t"], instance_id="i"))
    assert (answer.member_epoch, assigned(answer)) == (epoch, {topic: [0, 1]})
    assert commands.SessionEnded(group_id="group", member_id="a") in driver.effects
    assert driver.state.consumer_groups["group"].epoch == epoch
    assert refusal(driver, request_of("a", -2, instance_id="i")) == E.FENCED_INSTANCE_ID
    assert assigned(beat(driver, "b", instance_id="j")) is None


def test_a_static_member_whose_answer_was_lost_joins_again(driver: CoordinatorDriver, topic: bytes) -> None:
    """Kafka answers UNRELEASED_INSTANCE_ID, which ends the client."""
    send(driver, join_request("a", ["t"], instance_id="i"))
    answer = send(driver, join_request("a", ["t"], instance_id="i"))
    assert (answer.member_epoch, assigned(answer)) == (2, {topic: [0, 1, 2, 3]})


def test_a_static_member_that_does_not_come_back_is_expired(driver: CoordinatorDriver, topic: bytes) -> None:
    send(driver, join_request("a", ["t"], instance_id="i"))
    send(driver, request_of("a", LEFT_FOR_A_WHILE_EPOCH, instance_id="i"))
    driver.run(commands.ExpireMember(group_id="group", member_id="a"))
    assert driver.state.consumer_groups["group"].static_members == {}
    assert assigned(send(driver, join_request("b", ["t"], instance_id="i"))) == {topic: [0, 1, 2, 3]}


def test_a_static_member_that_left_while_it_had_to_give_back_has_given_back(
    driver: CoordinatorDriver, topic: bytes
) -> None:
    send(driver, join_request("a", ["t"], instance_id="i"))
    send(driver, join_request("b", ["t"]))
    beat(driver, "a", instance_id="i")
    send(driver, request_of("a", LEFT_FOR_A_WHILE_EPOCH, instance_id="i"))
    assert assigned(beat(driver, "b")) == {topic: [2, 3]}
    assert assigned(send(driver, join_request("a", ["t"], instance_id="i"))) == {topic: [0, 1]}


def test_topics_that_appear_grow_and_go_away_are_noticed_with_the_next_heartbeat(
    driver: CoordinatorDriver, topic: bytes
) -> None:
    send(driver, join_request("a", ["t", "u"]))
    other = driver.create_topic("u", 1)
    answer = beat(driver, "a")
    assert (answer.member_epoch, assigned(answer)) == (3, {topic: [0, 1, 2, 3], other: [0]})
    request = pb.CreatePartitionsRequest(
        topics=[pb.CreatePartitionsRequest.Topic(name="u", count=2, assigned_count=-1)]
    )
    driver.run(commands.CreatePartitions(request=request))
    assert assigned(beat(driver, "a")) == {topic: [0, 1, 2, 3], other: [0, 1]}
    driver.delete("u")
    answer = beat(driver, "a")
    assert (answer.member_epoch, assigned(answer)) == (4, {topic: [0, 1, 2, 3]})
    assert beat(driver, "a", owned={topic: [0, 1, 2, 3]}).member_epoch == 5
    again = driver.create_topic("u", 1)
    assert again != other and assigned(beat(driver, "a")) == {topic: [0, 1, 2, 3], again: [0]}
    driver.create_topic("unrelated", 1)
    assert beat(driver, "a").member_epoch == 6 and driver.record_count == 0


def test_a_regular_expression_matches_whole_names_now_and_later(driver: CoordinatorDriver, topic: bytes) -> None:
    answer = send(driver, join_request("a", regex="t|orders-.*"))
    assert assigned(answer) == {topic: [0, 1, 2, 3]}
    orders = driver.create_topic("orders-eu", 1)
    driver.create_topic("my-orders-eu", 1)
    driver.create_topic("tt", 1)
    assert assigned(beat(driver, "a")) == {topic: [0, 1, 2, 3], orders: [0]}
    assert driver.state.consumer_groups["group"].expressions["t|orders-.*"].topics == ("orders-eu", "t")
    driver.delete("orders-eu")
    assert assigned(beat(driver, "a")) == {topic: [0, 1, 2, 3]}
    other = driver.create_topic("orders-us", 1)
    assert assigned(beat(driver, "a", owned={topic: [0, 1, 2, 3]})) == {topic: [0, 1, 2, 3], other: [0]}


@pytest.mark.parametrize(
    ("names", "regex"), [(["__share_group_state", "__consumer_offsets"], None), (None, "__.*"), (None, ".*")]
)
def test_internal_topics_are_subscribed_to_like_others(names: list[str] | None, regex: str | None) -> None:
    """As in Kafka, whose coordinator knows of no difference."""
    driver = CoordinatorDriver({"offsets.topic.num.partitions": "2"}, state_partitions=3)
    assert assigned(send(driver, join_request("a", names, regex=regex))) == {
        STATE_TOPIC_ID: [0, 1, 2],
        CONSUMER_OFFSETS_TOPIC_ID: [0, 1],
    }
    request = pb.ConsumerGroupDescribeRequest(group_ids=["group"])
    settings = ConsumerGroupSettings(driver.configs)
    (described,) = consumer_groups_view.describe(driver.state, settings, request).groups
    named = {topic.topic_name for topic in described.members[0].assignment}
    assert named == {"__share_group_state", "__consumer_offsets"}
    driver.restart()
    assert beat(driver, "a").member_epoch == 2 and driver.record_count == 0, "they are no other topics now"


def test_names_and_an_expression_add_up_and_an_unused_expression_is_deleted(
    driver: CoordinatorDriver, topic: bytes
) -> None:
    other = driver.create_topic("u", 1)
    answer = send(driver, join_request("a", ["u"], regex="t"))
    assert assigned(answer) == {topic: [0, 1, 2, 3], other: [0]}
    send(driver, join_request("b", regex="t"))
    group = driver.state.consumer_groups["group"]
    assert group.is_subscribed_to("t") and group.is_subscribed_to("u") and not group.is_subscribed_to("x")
    beat(driver, "a", regex="")
    assert list(group.expressions) == ["t"]
    send(driver, request_of("b", -1))
    assert group.expressions == {} and not group.is_subscribed_to("t")


def test_what_a_member_no_longer_subscribes_to_is_taken_at_once(driver: CoordinatorDriver, topic: bytes) -> None:
    other = driver.create_topic("u", 2)
    send(driver, join_request("a", ["t", "u"]))
    answer = beat(driver, "a", names=["u"])
    assert assigned(answer) == {other: [0, 1]}
    assert current(driver, "a").state is MemberState.UNREVOKED_PARTITIONS
    send(driver, join_request("b", ["t"]))
    assert assigned(beat(driver, "b")) is None
    beat(driver, "a", owned={other: [0, 1]})
    assert assigned(beat(driver, "b")) == {topic: [0, 1, 2, 3]}


def test_most_members_decide_which_assignor_is_used(driver: CoordinatorDriver, topic: bytes) -> None:
    driver.create_topic("u", 1)
    send(driver, join_request("a", ["t", "u"]))
    group = driver.state.consumer_groups["group"]
    send(driver, join_request("b", ["t", "u"], assignor="range"))
    assert [len(group.targets["a"].get(topic, ())), len(group.targets["b"].get(topic, ()))] == [2, 2]
    assert group.assignor_wishes == {"range": 1}
    send(driver, join_request("c", ["t", "u"], assignor="uniform"))
    beat(driver, "a", assignor="uniform")
    assert group.assignor_wishes == {"range": 1, "uniform": 2}


def test_targets_are_computed_once_in_the_assignment_interval() -> None:
    driver = CoordinatorDriver()
    driver.now_ms = 1_000_000
    topic = driver.create_topic("t", 2)
    send(driver, join_request("a", ["t"]))
    driver.now_ms += 400
    answer = send(driver, join_request("b", ["t"]))
    group = driver.state.consumer_groups["group"]
    assert (answer.member_epoch, assigned(answer), answer.heartbeat_interval_ms) == (2, {}, 600)
    assert (group.epoch, group.assignment_epoch, group.state) == (3, 2, "Assigning")
    assert beat(driver, "a").heartbeat_interval_ms == 600
    driver.now_ms += 600
    assert beat(driver, "b").heartbeat_interval_ms == 5000
    assert (group.assignment_epoch, group.targets) == (3, {"a": {topic: (0,)}, "b": {topic: (1,)}})
    driver.now_ms -= 500_000  # a clock that was set back holds nothing up
    send(driver, request_of("b", -1))
    beat(driver, "a")
    assert group.assignment_epoch == 4


def test_a_groups_own_configs_decide_within_the_brokers_bounds(driver: CoordinatorDriver, topic: bytes) -> None:
    config = pb.IncrementalAlterConfigsRequest.AlterableConfig
    resource = pb.IncrementalAlterConfigsRequest.Resource(
        resource_type=32,
        resource_name="group",
        configs=[
            config(name="consumer.session.timeout.ms", value="50000"),
            config(name="consumer.heartbeat.interval.ms", value="7000"),
        ],
    )
    request = pb.IncrementalAlterConfigsRequest(resources=[resource])
    driver.run(commands.IncrementalAlterConfigs(request=request))
    answer = send(driver, join_request("a", ["t"]))
    assert answer.heartbeat_interval_ms == 7000
    renewed = commands.SessionRenewed(group_id="group", member_id="a", session_timeout_ms=50_000)
    assert renewed in driver.effects


def test_a_restart_changes_nothing_for_the_members(driver: CoordinatorDriver, topic: bytes) -> None:
    send(driver, join_request("a", regex="t"))
    send(driver, join_request("b", ["t"], instance_id="i"))
    beat(driver, "a")
    before = driver.state
    driver.restart()
    assert driver.state == before and driver.state.consumer_groups["group"].owners
    assert beat(driver, "a", owned={topic: [0, 1]}).member_epoch == 3
    driver.restart()
    assert assigned(beat(driver, "b", instance_id="i")) == {topic: [2, 3]}
    assert driver.state.consumer_groups["group"].state == "Stable"
