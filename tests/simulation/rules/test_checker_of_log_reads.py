"""The rule of ordinary fetches on histories of a few events."""

from __future__ import annotations

from collections.abc import Sequence

from support.simulation.evidence import Evidence, Expectations
from support.simulation.history import History, LogRead
from support.simulation.kafka_clients.protocol import ReadRecord
from support.simulation.rules.log_reads import reads_match_the_logs

LOG = (ReadRecord(0, "a"), ReadRecord(1, "b", committed=False), ReadRecord(3, "c"))
"""Offset 2 has the marker of the transaction of b."""
READ = ((0, "a", True), (1, "b", False), (3, "c", True))


def broken(
    records: Sequence[tuple[int, str, bool]],
    markers: Sequence[int] = (2,),
    *,
    last: int = 3,
    is_committed: bool = True,
    log_start: int = 0,
) -> list[str]:
    history = History()
    history.add(LogRead(1.0, "reader-1", is_committed, 0, (0, last), tuple(records), tuple(markers)))
    expectations = Expectations(
        groups=(),
        logs={0: [record for record in LOG if record.offset >= log_start]},
        delivery_count_limit=5,
        lock_duration_s=1.0,
        log_starts={0: log_start},
    )
    return [violation.rule for violation in reads_match_the_logs(Evidence(history, expectations))]


def test_the_log_is_read() -> None:
    assert broken(READ) == []
    assert broken(READ[:2], last=2) == []


def test_no_offset_is_passed() -> None:
    assert broken(READ[1:]) == ["a gap in what was read"]
    assert broken(READ, markers=()) == ["a gap in what was read"]
    assert broken(READ, last=4) == ["a gap in what was read"]
    assert broken((*READ, READ[0])) == ["a gap in what was read"]


def test_each_record_is_the_logs() -> None:
    assert broken(((0, "z", True), *READ[1:])) == ["read what is not in the log"]
    assert broken((*READ, (4, "d", True)), last=4) == ["read what is not in the log"]


def test_read_committed_has_the_committed_records() -> None:
    assert broken((READ[0], (1, "b", True), READ[2])) == ["an aborted record was read"]
    assert broken((READ[0], (1, "b", True), READ[2]), is_committed=False) == []
    assert broken(((0, "a", False), *READ[1:])) == ["a committed record was read as aborted"]


def test_of_deleted_records_only_the_offsets_are_known() -> None:
    assert broken(((0, "z", True), *READ[1:]), log_start=1) == []
    assert broken(READ[1:], log_start=1) == ["a gap in what was read"]
