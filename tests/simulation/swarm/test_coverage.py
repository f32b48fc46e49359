"""What seeds met is counted where it happens, and a larger run that missed something says what."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from kshare_core.states import RecordState
from kshare_leader.machine.share_partition import SharePartition
from kshare_leader.machine.transitions import Event
from support.simulation import __main__ as command
from support.simulation.cluster import EMBEDDED, ENGINES, KAFKA, LOST_DISKS, VARIANTS
from support.simulation.history import (
    Assigned,
    CommitAnswered,
    CommitSent,
    FaultEvent,
    History,
    HoldsEnded,
    LeaseRenewed,
    SessionReleased,
    StateLoaded,
)
from support.simulation.history import Event as HistoryEvent
from support.simulation.kafka_clients.member import DIED
from support.simulation.plan import ADMINISTRATION, FORGERIES, draw_plan
from support.simulation.rules.liveness import DURING_FAULTS
from support.simulation.scenario import SeedRun
from support.simulation.seeds.activity_coverage import (
    ADMINISTERED,
    FORGED_COMMIT,
    LEASE_RAN_OUT,
    OTHER_LEADER,
    REASSIGNED,
    activities_met,
)
from support.simulation.seeds.coverage import (
    ACTIVITIES,
    ENOUGH_SEEDS,
    FAULTS,
    HUGE_SEEDS,
    LIVENESS,
    MANY_SEEDS,
    OFTEN,
    RARE,
    RAREST,
    TRANSACTIONS,
    Item,
    declared,
    not_met,
    record_transition,
    refused_acknowledgement,
    table,
)
from support.simulation.seeds.fresh import first_seed, fresh_jobs


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_a_seed_counts_the_transitions_that_were_taken() -> None:
    before = SharePartition.acknowledge, SharePartition._change
    plan = replace(draw_plan(1), transactional_producers=0, committed_groups=(), activities=())
    outcome = SeedRun(plan, faults=[]).run()
    assert not outcome.failed, outcome.report()
    accepted = record_transition(RecordState.ACQUIRED, Event.ACCEPT, RecordState.ACKNOWLEDGED)
    acquired = record_transition(RecordState.AVAILABLE, Event.ACQUIRE, RecordState.ACQUIRED)
    assert outcome.coverage[accepted] > 10
    assert outcome.coverage[acquired] > 10
    assert outcome.coverage[Item(LIVENESS, DURING_FAULTS)] > 0, "the rule of liveness was put"
    assert not [item for item in outcome.coverage if item.table in (FAULTS, TRANSACTIONS) and outcome.coverage[item]]
    assert (SharePartition.acknowledge, SharePartition._change) == before, "the machine is as it was"


def test_a_seed_counts_its_activities() -> None:
    plan = replace(draw_plan(1), transactional_producers=0, committed_groups=(), activities=(ADMINISTRATION, FORGERIES))
    outcome = SeedRun(plan, faults=[]).run()
    assert not outcome.failed, outcome.report()
    for name in (REASSIGNED, ADMINISTERED, "a leader releases a share session", "a forged acknowledgement is answered"):
        assert outcome.coverage[Item(ACTIVITIES, name)] > 0, name
    assert not outcome.coverage[Item(ACTIVITIES, "a node joins")]


def test_activities_are_counted_from_what_happened() -> None:
    history = History()
    events: list[HistoryEvent] = [
        Assigned(1.0, "g1", "m1", 1, (0, 1)),
        Assigned(2.0, "g1", "m1", 2, (0, 1)),
        Assigned(3.0, "g1", "m1", 3, (0,)),
        LeaseRenewed(1.0, "leader-1#1", 0.9, 2_000),
        LeaseRenewed(2.8, "leader-1#1", 2.7, 2_000),
        LeaseRenewed(4.8, "leader-1#1", 4.6, 2_000),
        LeaseRenewed(4.9, "leader-1#2", 4.8, 2_000),
        StateLoaded(1.0, 0.9, 0.8, "g1", 0, "leader-1#1", 4, 1, 0, ()),
        StateLoaded(2.0, 1.9, 1.8, "g1", 0, "leader-1#1", 4, 1, 0, ()),
        StateLoaded(3.0, 2.9, 2.8, "g1", 0, "leader-2#1", 5, 1, 0, ()),
        CommitSent(1.0, 1, "c1", "m1", 0, 3),
        CommitAnswered(1.1, 1, 0),
        CommitSent(2.0, 2, "c1", "m2", 0, 9, is_forged=True),
        CommitAnswered(2.1, 2, 25),
        HoldsEnded(3.0, "g1", "m1", "gateway-1", DIED),
        FaultEvent(3.0, "join", ("leader-3",), ""),
        SessionReleased(3.1, "leader-1#1", "g1", "m1", "1 a", (), 0, ()),
        SessionReleased(3.2, "leader-1#1", "g1", "m1", "1 a", (), 0, (4,)),
    ]
    for event in events:
        history.add(event)
    assert {name: count for name, count in activities_met(history, 2).items() if count} == {
        ADMINISTERED: 2,
        FORGED_COMMIT: 1,
        LEASE_RAN_OUT: 1,
        OTHER_LEADER: 1,
        REASSIGNED: 1,
        "a commit of a consumer group is confirmed": 1,
        "a leader hears that an answer was lost": 1,
        "a leader releases a share session": 1,
        "a member of a share group dies": 1,
        "a node joins": 1,
    }


def test_what_members_send_is_declared() -> None:
    items = declared()
    assert record_transition(RecordState.ACQUIRED, Event.RENEW, RecordState.ACQUIRED) in items
    for state in (RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVING, RecordState.ARCHIVED):
        for event in (Event.ACCEPT, Event.RELEASE, Event.REJECT, Event.RENEW):
            assert refused_acknowledgement(state, event) in items
    assert {*RARE, *RAREST} <= set(declared(VARIANTS)), "what is rare is declared"


def test_a_huge_run_meets_each_kind_of_fault_often() -> None:
    counts = Counter(dict.fromkeys(declared(), OFTEN))
    assert not_met(counts, ENGINES, HUGE_SEEDS) == []
    crash, accepted = Item(FAULTS, "crash"), refused_acknowledgement(RecordState.AVAILABLE, Event.ACCEPT)
    counts[crash] = counts[accepted] = OFTEN - 1
    counts[RAREST[0]] = 0
    assert not_met(counts, ENGINES, HUGE_SEEDS) == [crash, RAREST[0]]
    assert not_met(counts, ENGINES, HUGE_SEEDS - 1) == []


@pytest.mark.parametrize(("seeds", "rare_is_needed"), [(ENOUGH_SEEDS, False), (MANY_SEEDS, True)])
def test_what_a_larger_run_did_not_meet_is_named(seeds: int, rare_is_needed: bool) -> None:
    counts = Counter(dict.fromkeys(declared(), 1))
    assert not_met(counts, ENGINES, seeds) == []
    crash = Item(FAULTS, "crash")
    counts[crash] = counts[RARE[0]] = 0
    assert not_met(counts, ENGINES, seeds) == [crash, *RARE[:1] * rare_is_needed]
    assert not_met(counts, ENGINES, ENOUGH_SEEDS - 1) == []
    of_engines = {EMBEDDED: counts, KAFKA: Counter({crash: 3})}
    assert "\n           3          0          3  crash\n" in table(of_engines)


def test_an_engine_has_only_what_it_can_meet() -> None:
    of_kafka = declared([KAFKA])
    assert Item(FAULTS, "stale-owner") in of_kafka
    assert Item(FAULTS, "disk-failure") not in of_kafka
    assert not [item for item in of_kafka if item.table == TRANSACTIONS], "transactions are the brokers'"
    assert Item(FAULTS, "stale-owner") not in declared([EMBEDDED])
    assert Item(FAULTS, "disk-lost") not in declared(ENGINES)
    assert declared([LOST_DISKS]) == [Item(FAULTS, "disk-lost"), Item(FAULTS, "disk-older")]
    assert set(declared([*ENGINES, LOST_DISKS])) == {*declared(ENGINES), *declared([LOST_DISKS])}


def test_fresh_seeds_follow_from_date_and_commit() -> None:
    first = first_seed("2026-11-26", "0e5112d6")
    assert first == first_seed("2026-11-26", "0e5112d6")
    assert len({first, first_seed("2026-11-27", "0e5112d6"), first_seed("2026-11-26", "0e5112d7")}) == 3
    jobs = fresh_jobs(first, 300)
    assert sorted(seed for _, seed in jobs) == list(range(first, first + 300))
    counts = Counter(variant for variant, _ in jobs)
    assert (counts[KAFKA], counts[EMBEDDED], counts[LOST_DISKS]) == (100, 190, 10)


def test_the_command_says_how_to_run_the_same_seeds_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--fresh", "2", "--first", "4", "--processes", "1"]) == 0
    printed = capsys.readouterr().out
    assert 'make simulate SIMULATE="--fresh 2 --first 4"' in printed
    assert "2 seeds in" in printed
    assert "0 failed" in printed
