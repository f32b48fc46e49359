"""Committed offsets in the machine: every error of a commit, fetches, retention, deleted topics."""

from __future__ import annotations

import pytest

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.offsets import view as offsets_view
from kshare_core.configs import PROCESS_CONFIGS, Configs
from kshare_core.errors import ErrorCode as E
from kshare_core.errors import KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_core.internal_topics import CONSUMER_OFFSETS_TOPIC, STATE_TOPIC, STATE_TOPIC_ID
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.committed_offsets import commit, fetched, offset_of
from support.coordinator.driver import CoordinatorDriver

MINUTE_MS = 60_000
UNKNOWN_ID = bytes([9] * 16)


@pytest.fixture
def driver() -> CoordinatorDriver:
    made = CoordinatorDriver({"kshare.max.groups": "2", "kshare.max.committed.offsets": "5"})
    made.create_topic("t", 2)
    made.create_topic("u", 3)
    return made


def test_a_commit_of_a_simple_consumer_makes_the_group(driver: CoordinatorDriver) -> None:
    driver.now_ms = 1234
    offsets = [offset_of(("t", 0), 7, "note", leader_epoch=3), offset_of(("t", 1), 8)]
    assert commit(driver, offsets) == [0, 0]
    driver.restart()
    request = pb.OffsetFetchRequest(group_id="group", all_topics=True)
    (first, second) = offsets_view.fetch(driver.state, request).results
    topic_id = driver.state.topic_ids["t"]
    assert first == pb.OffsetFetchResponse.Result(
        offset=pb.CommittedOffset(
            topic_id=topic_id,
            topic_name="t",
            partition=0,
            committed_offset=7,
            committed_leader_epoch=3,
            committed_metadata="note",
        )
    )
    assert (second.offset.committed_offset, second.offset.committed_leader_epoch) == (8, -1)
    stored = driver.state.offsets.get("group", TopicPartition(topic_id, 0))
    assert stored is not None and stored.commit_timestamp_ms == 1234


def test_a_later_commit_replaces_the_offset_even_by_a_lower_one(driver: CoordinatorDriver) -> None:
    commit(driver, {("t", 0): 7})
    commit(driver, {("t", 0): 3, ("t", 1): 1})
    assert fetched(driver.state) == {("t", 0): 3, ("t", 1): 1}


def test_the_state_topic_which_consumers_can_read(driver: CoordinatorDriver) -> None:
    """A consumer of it commits as of any topic; before, closing one took as long as its retries."""
    count = driver.state.state_partition_count
    wanted = {(STATE_TOPIC, 0): 5, (STATE_TOPIC, count - 1): 6, (STATE_TOPIC, count): 7}
    assert commit(driver, wanted) == [0, 0, E.UNKNOWN_TOPIC_OR_PARTITION]
    assert commit(driver, [pb.CommittedOffset(topic_id=STATE_TOPIC_ID, partition=1, committed_offset=8)]) == [0]
    driver.restart()
    assert driver.run(commands.ReconcileTopics()) == 0, "it is no topic that is gone"
    assert fetched(driver.state) == {(STATE_TOPIC, 0): 5, (STATE_TOPIC, 1): 8, (STATE_TOPIC, count - 1): 6}
    deletion = pb.NamedPartitions(topic_name=STATE_TOPIC, partitions=[0, count])
    request = pb.OffsetDeleteRequest(group_id="group", topics=[deletion])
    answer = driver.run(commands.DeleteOffsets(request=request))
    assert [result.error_code for result in answer.results] == [0, E.UNKNOWN_TOPIC_OR_PARTITION]
    assert fetched(driver.state) == {(STATE_TOPIC, 1): 8, (STATE_TOPIC, count - 1): 6}


def test_the_topic_of_committed_offsets(driver: CoordinatorDriver) -> None:
    """Clients see it; what they cannot is read it."""
    assert commit(driver, {(CONSUMER_OFFSETS_TOPIC, 49): 5, (CONSUMER_OFFSETS_TOPIC, 50): 6}) == [
        0,
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    driver.restart()
    assert driver.run(commands.ReconcileTopics()) == 0
    assert fetched(driver.state) == {(CONSUMER_OFFSETS_TOPIC, 49): 5}


def test_partitions_that_do_not_exist(driver: CoordinatorDriver) -> None:
    topic_id = driver.state.topic_ids["t"]
    offsets = [
        offset_of(("missing", 0), 1),
        offset_of(("t", 2), 2),
        offset_of(("t", -1), 3),
        offset_of(("t", 1), 4),
        pb.CommittedOffset(topic_id=UNKNOWN_ID, partition=0, committed_offset=5),
        pb.CommittedOffset(topic_id=topic_id, partition=0, committed_offset=6),
        pb.CommittedOffset(topic_id=topic_id, partition=7, committed_offset=7),
        pb.CommittedOffset(topic_id=bytes(16), partition=2, committed_offset=8),
        offset_of(("u", 2), 8),
    ]
    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    unknown_id = E.UNKNOWN_TOPIC_ID
    assert commit(driver, offsets) == [unknown, unknown, unknown, 0, unknown_id, 0, unknown, unknown_id, 0]
    assert fetched(driver.state) == {("t", 0): 6, ("t", 1): 4, ("u", 2): 8}


@pytest.mark.parametrize(
    ("version", "epoch", "member_id", "code"),
    [
        (2, -1, "", E.NONE),
        (10, -1, "somebody", E.NONE),
        (8, 0, "somebody", E.ILLEGAL_GENERATION),
        (9, 0, "somebody", E.GROUP_ID_NOT_FOUND),
        (10, 5, "", E.GROUP_ID_NOT_FOUND),
    ],
)
def test_a_group_that_does_not_exist(
    driver: CoordinatorDriver, version: int, epoch: int, member_id: str, code: E
) -> None:
    fields = {"api_version": version, "generation_id_or_member_epoch": epoch, "member_id": member_id}
    assert commit(driver, {("t", 0): 1, ("missing", 0): 1}, **fields) == [code, E.UNKNOWN_TOPIC_OR_PARTITION]
    assert driver.state.offsets.has_group("group") == (code == E.NONE)


@pytest.mark.parametrize(
    ("epoch", "member_id", "code"),
    [(-1, "", 0), (-1, "somebody", 0), (0, "", E.UNKNOWN_MEMBER_ID), (3, "somebody", E.UNKNOWN_MEMBER_ID)],
)
@pytest.mark.parametrize("version", [2, 10])
def test_a_group_without_members(
    driver: CoordinatorDriver, version: int, epoch: int, member_id: str, code: int
) -> None:
    commit(driver, {("t", 0): 1})
    fields = {"api_version": version, "generation_id_or_member_epoch": epoch, "member_id": member_id}
    assert commit(driver, {("t", 0): 2}, **fields) == [code]
    assert fetched(driver.state) == {("t", 0): 1 if code else 2}


@pytest.mark.parametrize("version", [2, 10])
@pytest.mark.parametrize("epoch", [-1, 4])
def test_a_share_group_has_no_committed_offsets(driver: CoordinatorDriver, version: int, epoch: int) -> None:
    driver.heartbeat("m", 0, ["t"])
    fields = {"api_version": version, "generation_id_or_member_epoch": epoch}
    assert commit(driver, {("t", 0): 1}, **fields) == [E.GROUP_ID_NOT_FOUND]
    assert fetched(driver.state) == {}
    asked = [pb.TopicPartitions(topic_name="t", partitions=[0])]
    request = pb.OffsetFetchRequest(group_id="group", topics=asked)
    (result,) = offsets_view.fetch(driver.state, request).results
    assert (result.error_code, result.offset.committed_offset) == (0, -1)


def test_a_group_with_committed_offsets_cannot_become_a_share_group(driver: CoordinatorDriver) -> None:
    commit(driver, {("t", 0): 1})
    with pytest.raises(KafkaError) as refusal:
        driver.heartbeat("m", 0, ["t"])
    assert refusal.value.code == E.GROUP_ID_NOT_FOUND
    driver.delete("t")
    assert driver.heartbeat("m", 0, ["u"]).member_epoch == 2


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ("x" * 4096, 0),
        ("x" * 4097, E.OFFSET_METADATA_TOO_LARGE),
        ("\N{GRINNING FACE}" * 2048, 0),
        ("\N{GRINNING FACE}" * 2048 + "x", E.OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_long_metadata(driver: CoordinatorDriver, metadata: str, code: int) -> None:
    """offset.metadata.max.bytes counts Java characters; the other partitions of the request are committed."""
    assert commit(driver, [offset_of(("t", 0), 1, metadata), offset_of(("t", 1), 2)]) == [code, 0]
    assert fetched(driver.state) == ({("t", 1): 2} if code else {("t", 0): 1, ("t", 1): 2})


def test_groups_of_all_kinds_are_limited_together(driver: CoordinatorDriver) -> None:
    driver.heartbeat("m", 0, ["t"], group_id="share")
    assert commit(driver, {("t", 0): 1}, group_id="first") == [0]
    assert commit(driver, {("t", 0): 1}, group_id="second") == [E.GROUP_MAX_SIZE_REACHED]
    assert commit(driver, {("t", 1): 1}, group_id="first") == [0]


def test_committed_offsets_are_limited(driver: CoordinatorDriver) -> None:
    """Beyond kshare.max.committed.offsets, offsets of further partitions are refused, and others replaced."""
    commit(driver, {("t", 0): 1}, group_id="other")
    assert commit(driver, {("t", 0): 1, ("t", 1): 1, ("u", 0): 1}) == [0, 0, 0]
    more = {("t", 0): 2, ("u", 1): 2, ("u", 2): 2}
    assert commit(driver, more) == [0, E.POLICY_VIOLATION, E.POLICY_VIOLATION]
    assert fetched(driver.state) == {("t", 0): 2, ("t", 1): 1, ("u", 0): 1}
    assert commit(driver, [offset_of(("u", 1), 2), offset_of(("u", 1), 3), offset_of(("t", 0), 3)]) == [0, 0, 0]
    assert commit(driver, {("u", 2): 2}) == [E.POLICY_VIOLATION]


def test_offsets_are_replaced_at_the_limit(driver: CoordinatorDriver) -> None:
    """Also where a restart lowered the limit below the offsets that are there."""
    offsets = {("t", 0): 1, ("t", 1): 1, ("u", 0): 1, ("u", 1): 1, ("u", 2): 1}
    later = dict.fromkeys(offsets, 2)
    assert commit(driver, offsets) == [0] * 5
    assert commit(driver, later) == [0] * 5
    assert commit(driver, {("t", 0): 3}, group_id="other") == [E.POLICY_VIOLATION]
    driver.configs = Configs(PROCESS_CONFIGS, {"kshare.max.committed.offsets": "3"})
    driver.restart()
    assert commit(driver, {("u", 1): 3, ("u", 2): 3}) == [0, 0]
    assert fetched(driver.state) == {**later, ("u", 1): 3, ("u", 2): 3}


def test_what_a_fetch_says_about_partitions_without_an_offset(driver: CoordinatorDriver) -> None:
    commit(driver, {("t", 0): 1})
    asked = [
        pb.TopicPartitions(topic_name="t", partitions=[1, 0, 5]),
        pb.TopicPartitions(topic_name="missing", partitions=[0]),
        pb.TopicPartitions(topic_id=driver.state.topic_ids["t"], partitions=[0]),
        pb.TopicPartitions(topic_id=UNKNOWN_ID, partitions=[3]),
    ]
    results = offsets_view.fetch(driver.state, pb.OffsetFetchRequest(group_id="group", topics=asked)).results
    shown = [
        (result.offset.topic_name, result.offset.partition, result.offset.committed_offset, result.error_code)
        for result in results
    ]
    assert shown == [
        ("t", 1, -1, 0),
        ("t", 0, 1, 0),
        ("t", 5, -1, 0),
        ("missing", 0, -1, 0),
        ("t", 0, 1, 0),
        ("", 3, -1, E.UNKNOWN_TOPIC_ID),
    ]
    assert {result.offset.committed_leader_epoch for result in results} == {-1}
    assert results[3].offset.committed_metadata == ""


def test_a_fetch_of_all_topics_is_in_order(driver: CoordinatorDriver) -> None:
    commit(driver, {("u", 2): 1, ("t", 1): 2, ("u", 0): 3, ("t", 0): 4})
    assert list(fetched(driver.state).items()) == [(("t", 0), 4), (("t", 1), 2), (("u", 0), 3), (("u", 2), 1)]


def expire(driver: CoordinatorDriver) -> int:
    return driver.run(commands.ExpireOffsets(group_ids=tuple(driver.state.offsets.group_ids())))


def test_offsets_expire_after_their_retention() -> None:
    driver = CoordinatorDriver({"offsets.retention.minutes": "2"})
    driver.create_topic("t", 3)
    commit(driver, {("t", 0): 1, ("t", 1): 1})
    driver.now_ms = MINUTE_MS
    commit(driver, {("t", 1): 2})
    commit(driver, {("t", 0): 3}, group_id="other")
    driver.now_ms = 2 * MINUTE_MS - 1
    assert expire(driver) == 0
    driver.now_ms = 2 * MINUTE_MS
    assert expire(driver) == 1
    assert fetched(driver.state) == {("t", 1): 2}
    driver.now_ms = 3 * MINUTE_MS
    assert expire(driver) == 2
    assert not driver.state.offsets.has_group("group") and driver.state.offsets.row_count == 0
    assert not any(b"group" in key for key in driver.rows)


@pytest.mark.parametrize(("retention_time_ms", "expires_at_ms"), [(5, 105), (0, 100), (-7, 100), (1 << 62, 1 << 63)])
def test_a_retention_time_in_the_request(retention_time_ms: int, expires_at_ms: int) -> None:
    """Versions 2 to 4; offsets.retention.minutes plays no part then."""
    driver = CoordinatorDriver({"offsets.retention.minutes": "1"})
    driver.create_topic("t")
    driver.now_ms = 100
    fields = {"has_retention_time": True, "retention_time_ms": retention_time_ms}
    assert commit(driver, {("t", 0): 1}, api_version=2, **fields) == [0]
    if expires_at_ms > 100:
        driver.now_ms = min(expires_at_ms - 1, 10 * MINUTE_MS)
        assert expire(driver) == 0
    if expires_at_ms < 1000:
        driver.now_ms = expires_at_ms
        assert expire(driver) == 1


@pytest.mark.parametrize(("retention_time_ms", "expire_timestamp_ms"), [(-99, 1), (-100, 1), (-1000, 1), (-98, 2)])
def test_a_retention_time_before_the_epoch_is_not_stored_as_none(
    retention_time_ms: int, expire_timestamp_ms: int
) -> None:
    """An expire timestamp of 0 means that there is none, and that offset would never expire by it."""
    driver = CoordinatorDriver({"offsets.retention.minutes": "1"})
    driver.create_topic("t")
    driver.now_ms = 100
    fields = {"has_retention_time": True, "retention_time_ms": retention_time_ms}
    assert commit(driver, {("t", 0): 1}, api_version=2, **fields) == [0]
    stored = driver.state.offsets.get("group", TopicPartition(driver.state.topic_ids["t"], 0))
    assert stored is not None and stored.expire_timestamp_ms == expire_timestamp_ms


def test_the_largest_retention_time_does_not_break_the_record(driver: CoordinatorDriver) -> None:
    driver.now_ms = 100
    fields = {"has_retention_time": True, "retention_time_ms": (1 << 63) - 1}
    assert commit(driver, {("t", 0): 1}, api_version=2, **fields) == [0]
    driver.restart()
    assert fetched(driver.state) == {("t", 0): 1}


def test_offsets_of_deleted_topics_go_with_them(driver: CoordinatorDriver) -> None:
    commit(driver, {("t", 0): 1, ("u", 0): 2})
    commit(driver, {("t", 1): 3}, group_id="other")
    driver.delete("t")
    assert fetched(driver.state) == {("u", 0): 2}
    assert not driver.state.offsets.has_group("other")
    driver.create_topic("t", 2)
    assert fetched(driver.state) == {("u", 0): 2}
    driver.restart()
    assert fetched(driver.state) == {("u", 0): 2}


def test_the_group_is_not_checked_where_no_partition_is_valid(driver: CoordinatorDriver) -> None:
    driver.heartbeat("m", 0, ["t"])
    assert commit(driver, {("missing", 0): 1}) == [E.UNKNOWN_TOPIC_OR_PARTITION]
    assert commit(driver, {}) == []
