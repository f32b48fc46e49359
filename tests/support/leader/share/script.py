"""Runs text scenarios of the share-partition machine: blocks of commands, `----`, and the output they must give.

Commands (times in milliseconds; a member's name is its owner):
  recover START [FIRST-LAST:STATE:COUNT ...]   initialise from stored state
  begin START                                  initialise at an offset that is not stored yet
  limits NAME=NUMBER ...                       max_records, batch_size, lock_duration_ms, max_record_locks,
                                               delivery_count_limit, record_limit, dead_letters, is_renew_ack,
                                               renew_enabled (0 or 1), read_batches
  log FIRST-LAST ...                           appends batches to the log
  compact FIRST-LAST                           takes a batch out of the log
  log_start OFFSET                             the log begins there now
  at MS                                        sets the clock
  fetch MEMBER                                 acquires
  ack MEMBER FIRST-LAST:TYPES ...              acknowledges; types as letters: G A R X (reject) N (renew)
  release MEMBER                               the member's session ends
  expire                                       ends the locks that ran out
  undo MEMBER FIRST-LAST:COUNT                 gives an acquisition back that nobody saw
  dead_letters                                 prints the runs whose dead letters are due
  done FIRST-LAST                              their dead letters are stored
  write                                        prints the next write and keeps it in flight
  stored | failed                              ends the write in flight
  store                                        write, then stored
  state                                        prints the offsets and runs
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kshare_core.errors import KafkaError
from kshare_core.states import AcknowledgeType, RecordState
from kshare_leader.machine.acknowledgement import AcknowledgementBatch
from kshare_leader.machine.acquisition import AcquiredRecords, FetchLimits
from kshare_leader.machine.interval_map import NO_WRITE, Owner
from kshare_leader.machine.share_partition import SharePartition
from kshare_leader.machine.state_write import StateBatch, StateWrite
from support.leader.share.group_limits import group_limits

_TYPES = {
    "G": AcknowledgeType.GAP,
    "A": AcknowledgeType.ACCEPT,
    "R": AcknowledgeType.RELEASE,
    "X": AcknowledgeType.REJECT,
    "N": AcknowledgeType.RENEW,
}


class Block(NamedTuple):
    commands: list[str]
    expected: list[str]


def fetch(
    machine: SharePartition, log: list[tuple[int, int]], limits: FetchLimits, now_ms: int, read_batches: int = 3
) -> list[AcquiredRecords]:
    """Acquires as the leader's shell does, with a log of batches (base, last) that is read a few batches at a time."""
    found: list[AcquiredRecords] = []
    cursor = machine.start_offset
    left = limits.max_records
    while left > 0:
        position = machine.next_fetch(cursor, limits.group)
        if position is None:
            break
        batches = [batch for batch in log if batch[1] >= position.offset][:read_batches]
        if not batches:
            break
        cursor = batches[-1][1] + 1
        now_limits = FetchLimits(
            owner=limits.owner,
            max_records=left,
            batch_size=limits.batch_size,
            record_limit=limits.record_limit,
            group=limits.group,
        )
        acquired, complete = machine.acquire(now_limits, now_ms, position.offset, batches, cursor)
        found.extend(acquired)
        left -= sum(last - first + 1 for first, last, _ in acquired)
        if complete:
            break
    return found


class Script:
    """One share-partition and the log below it, driven by commands."""

    def __init__(self) -> None:
        self.machine = SharePartition(start_offset=0)
        self._log: list[tuple[int, int]] = []
        self._now_ms = 0
        self._in_flight: StateWrite | None = None
        self._limits = {
            "max_records": 500,
            "batch_size": 500,
            "lock_duration_ms": 30_000,
            "max_record_locks": 2000,
            "delivery_count_limit": 5,
            "record_limit": 0,
            "dead_letters": 0,
            "is_renew_ack": 1,
            "renew_enabled": 1,
            "read_batches": 3,
        }

    @property
    def _dead_letters(self) -> bool:
        return self._limits["dead_letters"] == 1

    def run(self, line: str) -> list[str]:
        """The output of one command."""
        name, *words = line.split()
        command: Callable[[list[str]], list[str]] = getattr(self, f"_on_{name}")
        return command(words)

    def _on_recover(self, words: list[str]) -> list[str]:
        batches = []
        for word in words[1:]:
            offsets, state, count = word.split(":")
            batches.append(StateBatch(*_offsets(offsets), RecordState[state], int(count)))
        self.machine = SharePartition(start_offset=int(words[0]), state_batches=batches)
        return []

    def _on_begin(self, words: list[str]) -> list[str]:
        self.machine = SharePartition(start_offset=int(words[0]), start_is_stored=False)
        return []

    def _on_log(self, words: list[str]) -> list[str]:
        self._log.extend(_offsets(word) for word in words)
        return []

    def _on_compact(self, words: list[str]) -> list[str]:
        self._log.remove(_offsets(words[0]))
        return []

    def _on_log_start(self, words: list[str]) -> list[str]:
        start = int(words[0])
        self._log = [batch for batch in self._log if batch[1] >= start]
        self.machine.remove_below(start)
        return []

    def _on_limits(self, words: list[str]) -> list[str]:
        for word in words:
            name, value = word.split("=")
            assert name in self._limits, name
            self._limits[name] = int(value)
        return []

    def _on_at(self, words: list[str]) -> list[str]:
        self._now_ms = int(words[0])
        return []

    def _on_fetch(self, words: list[str]) -> list[str]:
        values = self._limits
        limits = FetchLimits(
            owner=Owner(words[0]),
            max_records=values["max_records"],
            batch_size=values["batch_size"],
            record_limit=values["record_limit"] == 1,
            group=group_limits(
                lock_duration_ms=values["lock_duration_ms"],
                max_record_locks=values["max_record_locks"],
                delivery_count_limit=values["delivery_count_limit"],
            ),
        )
        acquired = fetch(self.machine, self._log, limits, self._now_ms, values["read_batches"])
        return [f"acquired {_text(first, last)} count {count}" for first, last, count in acquired] or ["nothing"]

    def _on_ack(self, words: list[str]) -> list[str]:
        batches = []
        for word in words[1:]:
            offsets, _, letters = word.partition(":")
            types = bytes(_TYPES[letter] for letter in letters)
            batches.append(AcknowledgementBatch(*_offsets(offsets), types))
        try:
            write_id = self.machine.acknowledge(
                Owner(words[0]),
                self._now_ms,
                batches,
                group_limits(
                    delivery_count_limit=self._limits["delivery_count_limit"],
                    lock_duration_ms=self._limits["lock_duration_ms"],
                    renew_enabled=self._limits["renew_enabled"] == 1,
                    dead_letters=self._dead_letters,
                ),
                renew_allowed=self._limits["is_renew_ack"] == 1,
            )
        except KafkaError as error:
            return [str(error)]
        return [_waits(write_id)]

    def _on_release(self, words: list[str]) -> list[str]:
        limit = self._limits["delivery_count_limit"]
        return [
            _waits(
                self.machine.release(
                    Owner(words[0]).__eq__, group_limits(delivery_count_limit=limit, dead_letters=self._dead_letters)
                )
            )
        ]

    def _on_expire(self, words: list[str]) -> list[str]:
        limit = self._limits["delivery_count_limit"]
        return [
            _waits(
                self.machine.expire(
                    self._now_ms, group_limits(delivery_count_limit=limit, dead_letters=self._dead_letters)
                )
            )
        ]

    def _on_undo(self, words: list[str]) -> list[str]:
        offsets, _, count = words[1].partition(":")
        self.machine.undo_acquire(Owner(words[0]), [AcquiredRecords(*_offsets(offsets), int(count))])
        return []

    def _on_dead_letters(self, words: list[str]) -> list[str]:
        runs = self.machine.archiving(100, group_limits(delivery_count_limit=self._limits["delivery_count_limit"]))
        return [f"due {_text(first, last)} count {count} {reason.name}" for first, last, count, reason in runs] or [
            "none"
        ]

    def _on_done(self, words: list[str]) -> list[str]:
        return [_waits(self.machine.dead_letters_done(*_offsets(words[0])))]

    def _on_write(self, words: list[str]) -> list[str]:
        write = self.machine.next_write()
        if write is None:
            return ["no write"]
        self._in_flight = write
        lines = [f"write start_offset={write.start_offset} done={write.delivery_complete_count}"]
        for first, last, state, count in write.state_batches:
            lines.append(f"  {_text(first, last)} {int(state)} ({state.name}) count {count}")
        return lines

    def _on_stored(self, words: list[str]) -> list[str]:
        assert self._in_flight is not None
        self.machine.write_succeeded(self._in_flight.write_id)
        self._in_flight = None
        return []

    def _on_failed(self, words: list[str]) -> list[str]:
        assert self._in_flight is not None
        self.machine.write_failed(self._in_flight.write_id)
        self._in_flight = None
        return []

    def _on_store(self, words: list[str]) -> list[str]:
        lines = self._on_write(words)
        return lines if self._in_flight is None else lines + self._on_stored(words)

    def _on_state(self, words: list[str]) -> list[str]:
        lines = [f"start {self.machine.start_offset} end {self.machine.end_offset}"]
        for run in self.machine.runs():
            holder = f" by {run.owner.member_id}" if run.owner else ""
            pending = f" -> {run.target.name}" if run.write_id != NO_WRITE else ""
            text = _text(run.first_offset, run.last_offset)
            lines.append(f"  {text} {run.state.name} count {run.delivery_count}{holder}{pending}")
        return lines


def _offsets(word: str) -> tuple[int, int]:
    first, _, last = word.partition("-")
    return int(first), int(last or first)


def _text(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _waits(write_id: int) -> str:
    return "no write to wait for" if write_id == NO_WRITE else f"waits for write {write_id}"


def blocks(path: Path) -> list[Block]:
    """The blocks of a scenario file; lines that begin with `#` are comments."""
    found: list[Block] = []
    for part in path.read_text().split("\n\n"):
        lines = [line for line in part.splitlines() if line and not line.startswith("#")]
        if lines:
            divider = lines.index("----")
            found.append(Block(lines[:divider], lines[divider + 1 :]))
    return found
