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
from support.simulation.cluster import EMBEDDED, ENGINES, KAFKA, LOST_DISKS
from support.simulation.plan import draw_plan
from support.simulation.scenario import SeedRun
from support.simulation.seeds.coverage import (
    ENOUGH_SEEDS,
    FAULTS,
    MANY_SEEDS,
    RARE,
    TRANSACTIONS,
    Item,
    declared,
    not_met,
    record_transition,
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
    assert not [item for item in outcome.coverage if item.table in (FAULTS, TRANSACTIONS) and outcome.coverage[item]]
    assert (SharePartition.acknowledge, SharePartition._change) == before, "the machine is as it was"


@pytest.mark.parametrize(("seeds", "rare_is_needed"), [(ENOUGH_SEEDS, False), (MANY_SEEDS, True)])
def test_what_a_larger_run_did_not_meet_is_named(seeds: int, rare_is_needed: bool) -> None:
    counts = Counter(dict.fromkeys(declared(), 1))
    assert not_met(counts, ENGINES, seeds) == []
    crash = Item(FAULTS, "crash")
    counts[crash] = counts[RARE[0]] = 0
    assert not_met(counts, ENGINES, seeds) == [crash, *RARE[:1] * rare_is_needed]
    assert not_met(counts, ENGINES, ENOUGH_SEEDS - 1) == []
    assert "        0  crash\n" in table(counts, ENGINES)


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
