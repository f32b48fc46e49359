"""What a redrive is asked to do, and the account of what it did. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

LEDGER_TOPIC = "__kshare_redrive"
FIRST_ONES = 5
"""How many records the account shows."""


class BadRequest(ValueError):
    """A redrive that cannot be done as it is asked for; the text says what is allowed."""


class RedriveFailed(RuntimeError):
    """It broke off; what is moved is noted, and a further run moves the rest."""


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
    numbers = (partition, first, last if dash else first)
    if not topic or not all(number.isascii() and number.isdigit() for number in numbers):
        raise BadRequest(f"offsets must be TOPIC:PARTITION:FIRST-LAST, found {text!r}")
    given = GivenOffsets(topic, *(int(number) for number in numbers))
    if given.last_offset < given.first_offset:
        raise BadRequest(f"the last offset is below the first: {text!r}")
    return given


@dataclass(frozen=True, slots=True)
class Selection:
    """Which of the candidates are meant; an empty tuple or None means all. Times are milliseconds since the epoch."""

    reasons: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    keys: tuple[bytes, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    """Exclusive."""


@dataclass(frozen=True, slots=True)
class RedriveRequest:
    """Exactly one of `dead_letter_topics`, `offsets` and `archived_groups` says what is looked at."""

    properties: Mapping[str, str] = field(repr=False)
    """librdkafka's, bootstrap.servers among them."""
    dead_letter_topics: tuple[str, ...] = ()
    offsets: tuple[GivenOffsets, ...] = ()
    archived_groups: tuple[str, ...] = ()
    """Share groups whose archived records the delivery history tells."""
    selection: Selection = Selection()
    where: str | None = None
    """An SQL expression over the columns of `spark.CANDIDATES`."""
    rate: float | None = None
    """Records per second, at most."""
    dry_run: bool = False
    timeout_s: float = 120.0

    def check(self) -> None:
        """BadRequest where it makes no sense."""
        if sum(map(bool, (self.dead_letter_topics, self.offsets, self.archived_groups))) != 1:
            raise BadRequest(
                "say what to redrive: dead-letter topics, --offsets TOPIC:PARTITION:FIRST-LAST or --archived GROUP"
            )
        if self.rate is not None and not self.rate > 0:
            raise BadRequest(f"the rate must be above 0 records/s, found {self.rate:g}")
        since, until = self.selection.since_ms, self.selection.until_ms
        if since is not None and until is not None and since >= until:
            raise BadRequest("--since must be before --until")


@dataclass(slots=True)
class Account:
    """What was moved, or with a dry run would be. Counts are records."""

    moved: dict[str, dict[str, int]] = field(default_factory=dict)
    """By source topic, then by reason."""
    already_moved: int = 0
    """By an earlier run; left alone."""
    problems: dict[str, int] = field(default_factory=dict)
    """What cannot be moved, by the sentence that says why."""
    first_ones: list[dict[str, Any]] = field(default_factory=list)
    """The first FIRST_ONES of the moved: from, to, group, reason, key, value (the last two shortened)."""

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
        """Adds what another part of the same redrive did."""
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
