"""Owners that fight for one fenced log, what they were told, and a referee that reads the log by rules of its own."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from kshare_upstream.fenced_log.claim import CONTROL_KEY, Claim
from kshare_upstream.fenced_log.fold import CountedBatch
from kshare_upstream.fenced_log.owner import FencedLog, LogRecord, MustClaimAgain, Superseded
from kshare_upstream.partition_log import OutcomeUnknown
from kshare_wire.record_batches import read_header
from kshare_wire.record_reading import open_records

NUMBER, SNAPSHOT = b"number", b"snapshot"


@dataclass
class Confirmed:
    """What an owner was told is in the log."""

    base_offset: int
    numbers: tuple[int, ...]


@dataclass
class TakenOver:
    """What a new owner found."""

    claimed_at: int
    numbers: frozenset[int]


@dataclass
class Account:
    """What happened in one simulation."""

    confirmed: list[Confirmed] = field(default_factory=list)
    taken_over: list[TakenOver] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)
    epochs: Iterator[int] = field(default_factory=lambda: count(1))


def numbers_of(key: bytes, value: bytes) -> list[int]:
    return list(json.loads(value)) if key in (NUMBER, SNAPSHOT) else []


class Owner:
    """A process that now and then is named the owner, and works until it hears that it is not any more."""

    def __init__(
        self, log: FencedLog, node_id: int, account: Account, chance: random.Random, *, longest_rest_s: float = 8.0
    ) -> None:
        self._longest_rest_s = longest_rest_s
        self._log = log
        self._node_id = node_id
        self._account = account
        self._chance = chance
        self._known: set[int] = set()

    async def live(self) -> None:
        while True:
            await asyncio.sleep(self._chance.random() * self._longest_rest_s)
            try:
                if await self._claim():
                    while self._chance.random() > 0.02:
                        await self._work()
            except (Superseded, MustClaimAgain, OutcomeUnknown):
                continue

    async def _claim(self) -> bool:
        epoch = next(self._account.epochs)
        for attempt in range(3):
            self._known = set()
            try:
                await self._log.claim(Claim(epoch, attempt, self._node_id, bytes(16)), self._take)
            except MustClaimAgain:
                continue
            found = TakenOver(self._log.end_offset - 1, frozenset(self._known))
            self._account.taken_over.append(found)
            return True
        return False

    def _take(self, batch: CountedBatch) -> None:
        for record in open_records(batch.data):
            self._known.update(numbers_of(record.key or b"", record.value or b""))

    async def _work(self) -> None:
        action = self._chance.random()
        if action < 0.05:
            await self._log.mark()
            await self._append(SNAPSHOT, sorted(self._known))
            await self._log.prune()
        elif action < 0.2:
            await asyncio.sleep(self._chance.random() * self._longest_rest_s / 8)
        else:
            await self._append(NUMBER, [next(self._account.numbers) for _ in range(self._chance.randint(1, 3))])

    async def _append(self, key: bytes, numbers: list[int]) -> None:
        base_offset = await self._log.append([LogRecord(key, json.dumps(numbers).encode())])
        self._known.update(numbers)
        self._account.confirmed.append(Confirmed(base_offset, tuple(numbers)))


def referee(history: Iterable[bytes | memoryview]) -> dict[int, tuple[int, ...]]:
    """The numbers of each batch that counts, by base offset: the rules of the package's text, said once more."""
    rank, producer_id, counted = (-1, -1), -1, {}
    for data in history:
        header = read_header(data)
        (record,) = open_records(data)
        value = record.value or b""
        if record.key == CONTROL_KEY:
            kind, epoch, attempt = value[2], int.from_bytes(value[3:11]), int.from_bytes(value[11:15])
            is_beginning = producer_id == -1 and kind == 2  # of a log that was pruned
            if is_beginning or (kind == 1 and (epoch, attempt) > rank):
                rank, producer_id = (epoch, attempt), header.producer_id
        elif header.producer_id == producer_id:
            counted[header.base_offset] = tuple(numbers_of(record.key or b"", value))
    return counted


def broken_rules(account: Account, counted: dict[int, tuple[int, ...]], *, since: int = 0) -> list[str]:
    """What was promised and does not hold; `counted` has the batches from the offset `since` on."""
    assert len(account.confirmed) > 50 and len(account.taken_over) > 3, "the owners did not work"
    found = [
        f"confirmed at {each.base_offset}, and does not count: {each.numbers}"
        for each in account.confirmed
        if each.base_offset >= since and counted.get(each.base_offset) != each.numbers
    ]
    for taken in account.taken_over:
        before = [each for each in account.confirmed if each.base_offset < taken.claimed_at]
        missing = {number for each in before for number in each.numbers} - taken.numbers
        if missing:
            found.append(f"the owner since {taken.claimed_at} does not know {sorted(missing)}")
        unknown = taken.numbers - {number for numbers in counted.values() for number in numbers}
        if unknown and taken.claimed_at >= since:
            found.append(f"the owner since {taken.claimed_at} knows {sorted(unknown)}, which do not count")
    return found
