"""The topics that a regular expression finds: those that the client may describe, and when they are looked up again."""

from __future__ import annotations

from typing import Any

import pytest

from kshare_coordinator.machine import commands
from kshare_core.security.acls import Operation, PatternType, PermissionType, ResourceType
from kshare_rpc.generated.kshare.v1 import security_pb2 as pb
from support.coordinator.driver import CoordinatorDriver
from support.groups.consumer_groups import assigned, join_request, request_of, send

REGEX = "[^_].*"
"""All topics but Kafka's own."""
ALICE, BOB = "User:alice", "User:bob"
CONFIGS = {"group.consumer.assignment.interval.ms": "0", "group.consumer.regex.refresh.interval.ms": "10000"}
ALL_ACLS = pb.AclFilter(
    resource_type=ResourceType.ANY,
    pattern_type=PatternType.ANY,
    operation=Operation.ANY,
    permission_type=PermissionType.ANY,
)


@pytest.fixture
def driver() -> CoordinatorDriver:
    made = CoordinatorDriver(CONFIGS)
    made.now_ms = 1_000_000
    for name in ("orders", "orders-eu", "secret"):
        made.create_topic(name)
    return made


def acl(name: str, principal: str = ALICE, operation: Operation = Operation.DESCRIBE, **fields: Any) -> pb.Acl:
    values = {
        "resource_type": ResourceType.TOPIC,
        "pattern_type": PatternType.LITERAL,
        "permission_type": PermissionType.ALLOW,
        "host": "*",
        **fields,
    }
    return pb.Acl(resource_name=name, principal=principal, operation=operation, **values)


def put_acls(driver: CoordinatorDriver, *acls: pb.Acl) -> None:
    """Replaces all ACLs."""
    driver.run(commands.AlterAcls(request=pb.AlterAclsRequest(filters=[ALL_ACLS])))
    driver.run(commands.AlterAcls(request=pb.AlterAclsRequest(creations=acls)))


def found(driver: CoordinatorDriver) -> tuple[str, ...]:
    """What the group's expression is resolved to."""
    return driver.state.consumer_groups["group"].expressions[REGEX].topics


def join(driver: CoordinatorDriver, member_id: str = "a", **client: Any) -> set[str]:
    """The topics of which the member that joins is assigned partitions."""
    answer = send(driver, join_request(member_id, regex=REGEX, **client))
    names = {topic_id: name for name, topic_id in driver.state.topic_ids.items()}
    return {names[topic_id] for topic_id in assigned(answer) or ()}


def beat(driver: CoordinatorDriver, member_id: str, principal: str) -> None:
    epoch = driver.state.consumer_groups["group"].current[member_id].member_epoch
    send(driver, request_of(member_id, epoch, principal=principal))


@pytest.mark.parametrize(
    ("acls", "client", "expected"),
    [
        ([acl("secret", BOB)], {}, set()),
        ([acl("orders"), acl("secret", BOB)], {}, {"orders"}),
        ([acl("orders", operation=Operation.READ)], {}, {"orders"}),
        ([acl("orders", operation=Operation.CREATE)], {}, set()),
        ([acl("ord", pattern_type=PatternType.PREFIXED)], {}, {"orders", "orders-eu"}),
        ([acl("*"), acl("orders", permission_type=PermissionType.DENY)], {}, {"orders-eu", "secret"}),
        ([acl("orders", host="10.0.0.1"), acl("secret", host="10.0.0.2")], {"client_host": "/10.0.0.1"}, {"orders"}),
        ([acl("orders", resource_type=ResourceType.GROUP)], {}, set()),
        ([acl("secret", BOB)], {"is_open_without_acls": True}, {"orders", "orders-eu"}),
        ([acl("secret", BOB)], {"principal": ""}, {"orders", "orders-eu", "secret"}),
    ],
)
def test_topics_that_the_client_may_not_describe_are_not_found(
    driver: CoordinatorDriver, acls: list[pb.Acl], client: dict[str, Any], expected: set[str]
) -> None:
    """No principal: a super user, or a gateway without an authorizer."""
    put_acls(driver, *acls)
    assert join(driver, **{"principal": ALICE, **client}) == expected
    driver.restart()
    assert set(found(driver)) == expected


def test_topics_created_later_are_found_if_the_client_may_describe_them(driver: CoordinatorDriver) -> None:
    put_acls(driver, acl("orders"), acl("orders-us"))
    join(driver, principal=ALICE)
    for name in ("orders-us", "secret-too"):
        driver.create_topic(name)
    beat(driver, "a", ALICE)
    assert found(driver) == ("orders", "orders-us")


@pytest.mark.parametrize("is_allowed", [True, False])
def test_changed_acls_count_when_the_expression_is_looked_up_again(driver: CoordinatorDriver, is_allowed: bool) -> None:
    """After group.consumer.regex.refresh.interval.ms, as in Kafka."""
    before, after = [acl("orders")], [acl("orders"), acl("secret")]
    if not is_allowed:
        before, after = after, before
    put_acls(driver, *before)
    join(driver, principal=ALICE)
    beat(driver, "a", ALICE)
    known = found(driver)
    put_acls(driver, *after)
    driver.now_ms += 9_999
    beat(driver, "a", ALICE)
    assert found(driver) == known
    driver.now_ms += 1
    beat(driver, "a", ALICE)
    assert found(driver) == tuple(each.resource_name for each in after)


def test_a_clock_that_was_set_back_delays_nothing(driver: CoordinatorDriver) -> None:
    put_acls(driver, acl("orders"))
    join(driver, principal=ALICE)
    beat(driver, "a", ALICE)
    put_acls(driver, acl("secret"))
    driver.now_ms -= 500_000
    beat(driver, "a", ALICE)
    assert found(driver) == ("secret",)


def test_members_with_different_rights_do_not_rebalance_the_group_in_turns(driver: CoordinatorDriver) -> None:
    """They share what the expression finds; the topics are those of the client whose heartbeat looked them up."""
    put_acls(driver, acl("orders"), acl("secret", BOB))
    join(driver, "a", principal=ALICE)
    join(driver, "b", principal=BOB)
    for member_id, principal in [("a", ALICE), ("b", BOB)] * 3:
        beat(driver, member_id, principal)
    group = driver.state.consumer_groups["group"]
    epoch, topics = group.epoch, found(driver)
    for member_id, principal in [("a", ALICE), ("b", BOB)] * 3:
        driver.now_ms += 1_000
        beat(driver, member_id, principal)
    assert (group.epoch, found(driver)) == (epoch, topics)


def test_what_an_older_version_found_is_looked_up_again_after_a_restart(driver: CoordinatorDriver) -> None:
    """Its gateways sent no principal, so that it found all topics."""
    put_acls(driver, acl("orders"))
    assert join(driver) == {"orders", "orders-eu", "secret"}
    driver.restart()
    beat(driver, "a", ALICE)
    assert found(driver) == ("orders",)
