"""The log of a share-partition has other records than those that its state knows: each case, with the share
coordinator's own machine.

Records are told apart by the leader epoch in which they were written and their offset. What is asked is always the
same: every record that is in the log is delivered, or was accepted as this record, and none that was accepted is
delivered again.
"""

from __future__ import annotations

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.leader_epochs import EpochEntry
from kshare_core.states import RecordState
from kshare_leader.metrics import LeaderMetrics
from support.leader.share.delivered_identities import DeliveredIdentities
from support.leader.share.service import UNAVAILABLE, MemoryTopicLog, key, run


@pytest.mark.parametrize("is_consumer_live", [True, False])
@pytest.mark.parametrize("restarts", [1, 2])
@pytest.mark.parametrize("produced_before_loading", [0, 50, 450])
def test_after_a_lost_disk_every_new_record_is_delivered(
    is_consumer_live: bool, restarts: int, produced_before_loading: int
) -> None:
    """Case (a) of the issue: 200 accepted, the leader's folder removed, 50 new records and 400 more."""

    async def test() -> None:
        case = await DeliveredIdentities.begin()
        case.produce(200)
        await case.accept(200)
        if not is_consumer_live:
            await case.leader.release("m1")
        await case.leader.restart(MemoryTopicLog(0))
        for _ in range(restarts - 1):
            await case.leader.restart()
        case.produce(produced_before_loading)
        await case.fetch_all()
        case.produce(450 - produced_before_loading)
        await case.check_everything_is_delivered(450)
        assert any("was cut at offset 0" in report for report in case.leader.reports)

    run(test)


@pytest.mark.parametrize("kept", [0, 100, 150])
@pytest.mark.parametrize("produced_before_loading", [0, 20, 300])
def test_after_an_older_disk_what_it_kept_stays_accepted_and_the_rest_is_new(
    kept: int, produced_before_loading: int
) -> None:
    async def test() -> None:
        case = await DeliveredIdentities.begin()
        case.produce(kept)
        older = case.leader.log().copy()
        case.produce(200 - kept)
        await case.accept(180)
        await case.leader.restart(older)
        case.produce(produced_before_loading)
        await case.fetch_all()
        case.produce(30)
        await case.check_everything_is_delivered(produced_before_loading + 30)

    run(test)


def test_what_a_live_consumer_released_comes_again_after_the_next_restart() -> None:
    """Case (b): 30 accepted and 30 released in a log that lost its disk while a consumer lived; then a kill."""

    async def test() -> None:
        case = await DeliveredIdentities.begin()
        case.produce(200)
        await case.accept(200)
        await case.leader.restart(MemoryTopicLog(0))
        case.produce(60)
        await case.accept(30)
        await case.release(30)
        await case.leader.restart()
        await case.check_everything_is_delivered(60)

    run(test)


def test_a_start_offset_beyond_the_end_is_brought_to_the_end_before_anything_is_delivered() -> None:
    """Case (c): an empty group's offsets are altered to 100, and the log ends at 10."""

    async def test() -> None:
        case = await DeliveredIdentities.begin()
        case.produce(10)
        await case.leader.release("m1")
        case.leader.channel.reset(0, 100, state_epoch=9)
        await case.fetch_all()
        assert case.leader.channel.state().start_offset == 10
        case.produce(20)
        await case.accept(10)
        await case.release(10)
        await case.leader.restart()
        await case.fetch_all()
        # The administrator gave up the first ten.
        assert [offset for _, offset in case.accepted | case.delivered] == list(range(10, 30))
        assert case.leader.channel.state().start_offset <= case.leader.log().high_watermark

    run(test)


def test_an_older_disk_after_a_lost_one_is_told_from_both() -> None:
    """The state knows records of a log that is gone; what is restored has other records at the same offsets."""

    async def test() -> None:
        case = await DeliveredIdentities.begin()
        case.produce(100)
        backup = case.leader.log().copy()
        await case.accept(100)
        await case.leader.restart(MemoryTopicLog(0))
        case.produce(50)
        await case.accept(50)
        await case.leader.restart(backup)
        case.accepted.clear()  # that the hundred were accepted was forgotten when the disk was lost
        case.produce(5)
        await case.check_everything_is_delivered(105)

    run(test)


def test_confirmed_states_below_the_divergence_stay() -> None:
    async def test() -> None:
        case = await DeliveredIdentities.begin()
        case.produce(50)
        older = case.leader.log().copy()
        case.produce(50)
        await case.accept(10, first=20)
        await case.accept(10, first=60)
        await case.leader.restart(older)
        case.produce(20)
        delivered = await case.fetch_all()
        assert sorted(offset for _, offset in delivered) == [*range(20), *range(30, 70)]
        await case.check_everything_is_delivered(60)

    run(test)


@pytest.mark.parametrize("stores_anyway", [False, True])
def test_an_answer_to_the_truncation_that_is_lost_does_no_harm(stores_anyway: bool) -> None:
    async def test() -> None:
        case = await DeliveredIdentities.begin()
        case.produce(40)
        await case.accept(40)
        await case.leader.restart(MemoryTopicLog(0))
        case.leader.channel.truncate_answers = [UNAVAILABLE, int(ErrorCode.NOT_COORDINATOR), UNAVAILABLE]
        case.leader.channel.stores_anyway = stores_anyway
        case.produce(40)
        await case.accept(20)
        await case.leader.restart()
        await case.check_everything_is_delivered(40)

    run(test)


def test_a_crash_after_the_truncation_and_before_it_is_answered_changes_nothing() -> None:
    async def test() -> None:
        case = await DeliveredIdentities.begin()
        case.produce(40)
        await case.accept(40)
        await case.leader.restart(MemoryTopicLog(0))
        case.produce(10)
        case.leader.channel.truncate_answers = [UNAVAILABLE] * 100
        case.leader.channel.stores_anyway = True
        assert await case.leader.acquire("m1", max_wait_ms=10) == []
        await case.leader.restart()
        await case.check_everything_is_delivered(10)

    run(test)


def test_a_truncation_that_arrives_late_undoes_nothing() -> None:
    async def test() -> None:
        case = await DeliveredIdentities.begin()
        case.produce(40)
        older = case.leader.log().copy()
        case.produce(10)
        await case.accept(45, first=5)
        await case.leader.restart(older)
        await case.fetch_all()
        late = case.leader.channel.truncations[0]
        await case.accept_all()
        assert case.leader.channel.state().start_offset == 40
        answer = case.leader.channel._truncate(late)
        assert [result.error_code for result in answer.results] == [ErrorCode.NONE]
        assert case.leader.channel.state().start_offset == 40
        await case.leader.restart()
        await case.check_everything_is_delivered(40)

    run(test)


def test_a_truncation_is_counted_and_noted_with_the_state() -> None:
    async def test() -> None:
        metrics = LeaderMetrics()
        case = await DeliveredIdentities.begin(metrics=metrics)
        case.produce(100)
        older = case.leader.log().copy()
        case.produce(20)
        await case.accept(110)
        await case.leader.restart(older)
        await case.fetch_all()
        assert metrics.of_share_partition(key(), 0).truncated == 20
        noted = case.leader.channel.state().truncation
        assert noted is not None
        assert (noted.leader_epoch, noted.offset, noted.start_offset, noted.end_offset) == (6, 100, 110, 120)
        (report,) = [report for report in case.leader.reports if "was cut" in report]
        assert "group" in report
        assert "100" in report
        assert "110" in report

    run(test)


def test_a_log_that_lost_nothing_is_left_alone() -> None:
    """Restarts, retention and holes: the state stays as it is, whatever the epochs are."""

    async def test() -> None:
        case = await DeliveredIdentities.begin()
        for _ in range(4):
            case.produce(20)
            await case.accept(15)
            await case.leader.restart()
        case.leader.log().delete_records(70)
        await case.leader.restart()
        await case.fetch_all()
        assert not case.leader.channel.truncations
        assert case.leader.channel.state().truncation is None

    run(test)


def test_a_state_that_no_leader_vouched_for_is_bounded_by_the_end_of_the_log() -> None:
    """As an older version stored it, or a client through key 85."""

    async def test() -> None:
        case = await DeliveredIdentities.begin()
        case.produce(60)
        accepted = int(RecordState.ACKNOWLEDGED)
        case.leader.channel.initialize(0, 50, (50, 54, accepted, 1), (55, 99, 0, 2))
        assert await case.leader.acquire("m1") == [(55, 59, 3)]
        (truncation,) = case.leader.channel.truncations
        assert truncation.partitions[0].offset == 60
        await case.leader.service.stop()

    run(test)


def test_entries_of_the_history_are_those_of_the_log() -> None:
    async def test() -> None:
        case = await DeliveredIdentities.begin()
        case.produce(10)
        await case.leader.restart()
        case.produce(10)
        await case.accept(5)
        assert list(case.leader.log().leader_epochs) == [EpochEntry(5, 0), EpochEntry(6, 10)]
        assert case.leader.channel.state().leader_epochs == case.leader.log().encoded_leader_epochs()

    run(test)
