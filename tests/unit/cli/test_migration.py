"""The plans of `kshare migrate`: configs of topics and groups, records that are left, stages."""

from __future__ import annotations

import pytest

from kshare.commands.groups.group_requests import ShareOffset
from kshare.migrate.groups import GroupPlan, NewGroup, OldGroup, Stage, records_left
from kshare.migrate.topics import OldTopic, plan_topics

ORDERS = frozenset({("orders", 0), ("orders", 1)})
LOCK = {"share.record.lock.duration.ms": "9000"}


def offset(partition: int, start_offset: int, lag: int) -> ShareOffset:
    return ShareOffset("orders", b"i" * 16, partition, start_offset, lag)


def test_configs_of_a_topic_are_parted() -> None:
    configs = {
        "retention.ms": "1000",
        "internal.segment.bytes": "4096",
        "min.insync.replicas": "2",
        "errors.deadletterqueue.group.enable": "true",
    }
    known = {"retention.ms", "min.insync.replicas"}
    (alone,) = plan_topics([OldTopic("orders", 3, configs)], {}, known, replicas=1)
    assert alone.is_missing and alone.problem is None
    assert alone.configs == {"retention.ms": "1000"}, "one replica can never have two in sync"
    assert alone.left_out == {"internal.segment.bytes": "4096", "min.insync.replicas": "2"}
    assert alone.kept_by_kshare == {"errors.deadletterqueue.group.enable": "true"}
    (three,) = plan_topics([OldTopic("orders", 3, configs)], {}, known, replicas=3)
    assert three.configs == {"retention.ms": "1000", "min.insync.replicas": "2"}


def test_a_topic_that_exists() -> None:
    old = [OldTopic("orders", 3, {}), OldTopic("payments", 1, {})]
    orders, payments = plan_topics(old, {"orders": 3, "payments": 2}, (), replicas=1)
    assert not orders.is_missing and orders.problem is None
    assert payments.problem == "topic payments has 1 partitions at --from and 2 at --to"


@pytest.mark.parametrize(
    ("offsets", "reset", "left"),
    [
        ([offset(0, 5, 7), offset(1, 0, 0)], "latest", 7),
        ([offset(0, 5, 7), offset(1, -1, -1)], "latest", 7),
        ([offset(0, 5, 7), offset(1, -1, -1)], "earliest", 37),
        ([offset(0, 5, 7), offset(1, -1, -1)], "by_duration:PT1H", 37),
        ([offset(0, 5, -1), offset(1, 0, 0)], "latest", None),
        ([offset(2, -1, -1)], "earliest", None),
        ([], "latest", 0),
    ],
)
def test_records_left(offsets: list[ShareOffset], reset: str, left: int | None) -> None:
    assert records_left(offsets, {("orders", 0): 12, ("orders", 1): 30}, reset) == left


def plan(old: dict[str, str], new: NewGroup | None, left: int | None = 0) -> GroupPlan:
    return GroupPlan(OldGroup(group_id="g", members=1, left=left, partitions=ORDERS, configs=old), new)


def new_group(started: frozenset[tuple[str, int]] = frozenset(), **configs: str) -> NewGroup:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    return NewGroup(members=0, started=started, configs=named)


def test_stages() -> None:
    assert plan({}, None, left=3).stage is Stage.DRAINING
    assert plan({}, None, left=None).stage is Stage.DRAINING, "an unknown number is not none"
    assert plan({}, None).stage is Stage.DRAINED
    assert plan({}, new_group()).stage is Stage.DRAINED
    assert plan({}, new_group(frozenset({("orders", 0)}))).stage is Stage.DRAINED, "partition 1 has not started"
    assert plan({}, new_group(ORDERS)).stage is Stage.SWITCHED


def test_configs_of_a_group_that_has_not_started() -> None:
    earliest = {"share.auto.offset.reset": "earliest"}
    assert plan(LOCK, None).changes == {}
    assert plan(LOCK, new_group()).changes == LOCK | earliest
    latest = {"share.auto.offset.reset": "latest"}
    assert plan(LOCK | latest, new_group()).changes == LOCK | earliest
    assert plan({}, new_group(share_auto_offset_reset="latest")).changes == earliest, "latest would lose records"
    partly = new_group(frozenset({("orders", 0)}), share_auto_offset_reset="earliest")
    assert plan({}, partly).changes == {} and plan({}, partly).reset_to_give_back is None
    assert plan(LOCK, new_group(share_record_lock_duration_ms="1", share_auto_offset_reset="earliest")).changes == {}


def test_configs_of_a_group_that_has_started() -> None:
    started = new_group(ORDERS, share_auto_offset_reset="earliest")
    assert plan({}, started).changes == {} and plan({}, started).reset_to_give_back == "latest"
    duration = {"share.auto.offset.reset": "by_duration:PT1H"}
    assert plan(duration, started).changes == {}, "a run does not take back what the operator may want"
    assert plan(duration, started).reset_to_give_back == "by_duration:PT1H"
    assert plan({"share.auto.offset.reset": "earliest"}, started).reset_to_give_back is None
    assert plan({}, new_group(ORDERS, share_auto_offset_reset="latest")).reset_to_give_back is None
