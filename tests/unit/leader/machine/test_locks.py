"""The lock entries of a share-partition: none is lost when there are too many and all are rebuilt."""

from __future__ import annotations

from hypothesis import given, strategies

from kshare_core.states import RecordState
from kshare_leader.machine.acquisition_locks import NEVER, SPARE_ENTRIES, AcquisitionLocks
from kshare_leader.machine.interval_map import Owner, Run
from support.leader.share.script import Script

OWNERS = [Owner("a"), Owner("b")]


@given(strategies.lists(strategies.tuples(strategies.sampled_from(OWNERS), strategies.integers(0, 99)), max_size=20))
def test_made_anew_they_say_what_the_runs_say(held: list[tuple[Owner, int]]) -> None:
    runs = [
        Run(first, first, RecordState.ACQUIRED, 1, owner, deadline_ms)
        for first, (owner, deadline_ms) in enumerate(held)
    ]
    locks = AcquisitionLocks()
    for number in range(2 * len(runs) + SPARE_ENTRIES + 1):
        locks.add(OWNERS[0], number, 0, 0)
    locks.tidy(len(runs), runs, len(runs))
    assert len(locks) == len(runs)
    assert locks.next_deadline_ms == min([deadline_ms for _, deadline_ms in held], default=NEVER)
    wanted = sorted((deadline_ms, first) for first, (_, deadline_ms) in enumerate(held) if deadline_ms <= 50)
    assert locks.take_due(50) == [(first, first) for _, first in wanted]
    of_b = [(first, first) for first, (owner, _) in enumerate(held) if owner == OWNERS[1]]
    assert locks.take_of(OWNERS[1].__eq__) == of_b
    assert locks.take_of(OWNERS[1].__eq__) == []


def test_a_session_that_ends_after_they_were_made_anew_gives_back_what_waits_for_a_failing_write() -> None:
    script = Script()
    commands = ["log 0-4 5-9", "limits max_records=5", "fetch c1", "fetch c2", "ack c1 0-4:A", "write"]
    commands += ["ack c2 5-9:N"] * 2 * SPARE_ENTRIES
    commands += ["release c1", "failed", "expire", "store", "state"]
    output = [line for command in commands for line in script.run(command)]
    assert output[-3:] == ["start 0 end 10", "  0-4 AVAILABLE count 1", "  5-9 ACQUIRED count 1 by c2"]
