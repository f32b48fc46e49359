"""The request of a redrive, and the account of its result. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from kshare_core.whole_numbers import LARGEST_INT, LARGEST_LONG, whole_number

LEDGER_TOPIC = "__kshare_redrive"
FIRST_ONES = 5
"""The number of example records in the account."""


class BadRequest(ValueError):
    """An invalid request; the text says what is allowed."""


class RedriveFailed(RuntimeError):
    """The redrive stopped early; moved records are noted, and another run moves the rest."""


class GivenOffsets(NamedTuple):
    """Offsets first_offset..last_offset of a partition, as given on the command line."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int


def parse_offsets(text: str) -> GivenOffsets:
    """TOPIC:PARTITION:FIRST-LAST, or TOPIC:PARTITION:OFFSET; BadRequest for anything else."""
    topic, _, rest = text.partition(":")
    partition, _, offsets = rest.partition(":")
    first, dash, last = offsets.partition("-")
    partition_number = whole_number(partition, LARGEST_INT)
    first_offset = whole_number(first, LARGEST_LONG)
    last_offset = whole_number(last, LARGEST_LONG) if dash else first_offset
    if not topic or partition_number is None or first_offset is None or last_offset is None:
        raise BadRequest(f"offsets must be TOPIC:PARTITION:FIRST-LAST, found {text!r}")
    given = GivenOffsets(topic, partition_number, first_offset, last_offset)
    if given.last_offset < given.first_offset:
        raise BadRequest(f"the last offset is below the first: {text!r}")
    return given


@dataclass(frozen=True, slots=True)
class Selection:
    """The filters of candidates; an empty tuple or None means all. Times are milliseconds since the epoch."""

    reasons: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    keys: tuple[bytes, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    """Exclusive."""


@dataclass(frozen=True, slots=True)
class RedriveRequest:
    """Exactly one of `dead_letter_topics`, `offsets` and `archived_groups` is given."""

    properties: Mapping[str, str] = field(repr=False)
    """Properties of librdkafka, with bootstrap.servers."""
    dead_letter_topics: tuple[str, ...] = ()
    offsets: tuple[GivenOffsets, ...] = ()
    archived_groups: tuple[str, ...] = ()
    """Share groups whose archived records, by the delivery history, are moved."""
    selection: Selection = Selection()
    where: str | None = None
    """An SQL expression over the columns of `spark.CANDIDATES`."""
    rate: float | None = None
    """The maximum of records per second."""
    dry_run: bool = False
    timeout_s: float = 120.0

    def check(self) -> None:
        """BadRequest for a contradiction."""
        if sum(map(bool, (self.dead_letter_topics, self.offsets, self.archived_groups))) != 1:
            raise BadRequest(
                "say what to redrive: dead-letter topics, --offsets TOPIC:PARTITION:FIRST-LAST or --archived GROUP"
            )
        if self.rate is not None and not self.rate > 0:
            raise BadRequest(f"the rate must be above 0 records/s, found {self.rate:g}")
        if self.rate == math.inf:
            raise BadRequest("the rate must be finite; without a rate there is no limit")
        since, until = self.selection.since_ms, self.selection.until_ms
        if since is not None and until is not None and since >= until:
            raise BadRequest("--since must be before --until")


@dataclass(slots=True)
class Account:
    """The moved records, or with a dry run those that would be moved. Counts are records."""

    moved: dict[str, dict[str, int]] = field(default_factory=dict)
    """Counts by source topic, then by reason."""
    already_moved: int = 0
    """Records that an earlier run moved; they are skipped."""
    problems: dict[str, int] = field(default_factory=dict)
    """Records that cannot be moved, by reason."""
    first_ones: list[dict[str, Any]] = field(default_factory=list)
    """The first FIRST_ONES moved records: from, to, group, reason, key, value (the last two shortened)."""

    @property
    def moved_count(self) -> int:
        return sum(count for reasons in self.moved.values() for count in reasons.values())

    @property
    def problem_count(self) -> int:
        return sum(self.problems.values())

    def add_moved(self, topic: str, reason: str, count: int = 1) -> None:
        reasons = self.moved.setdefault(topic, {})
        reasons[reason] = reasons.get(reason, 0) + count

    def add_problem(self, text: str, count: int = 1) -> None:
        self.problems[text] = self.problems.get(text, 0) + count

    def add(self, other: Account) -> None:
        """Adds the account of another part of the same redrive."""
        for topic, reasons in other.moved.items():
            for reason, count in reasons.items():
                self.add_moved(topic, reason, count)
        for text, count in other.problems.items():
            self.add_problem(text, count)
        self.already_moved += other.already_moved
        self.first_ones = [*self.first_ones, *other.first_ones][:FIRST_ONES]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Account:
        return Account(**json.loads(text))
