"""Fresh seeds: numbers that no earlier run had, from the date and the commit, so that every run of CI tries others.

The same day and commit give the same seeds again, so a failure in CI is repeated by the same command, too.
"""

from __future__ import annotations

import datetime
import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from support.simulation.cluster import EMBEDDED, KAFKA, LOST_DISKS

KAFKA_SHARE = 3
"""One seed in so many is of the kafka engine, which has fewer features."""
LOST_DISKS_SHARE = 20
"""One of so many of the others loses disks of leaders: its rules know less."""
FIRST_LIMIT = 1_000_000_000

Job = tuple[str, int]
"""One of `cluster.VARIANTS`, and the seed."""


def commit() -> str:
    """The commit that is checked out, short; "unknown" where there is no git repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def first_seed(date: str, commit_id: str) -> int:
    digest = hashlib.blake2b(f"{date} {commit_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % FIRST_LIMIT


def fresh_jobs(first: int, count: int) -> Sequence[Job]:
    """`count` seeds from `first` on, those of the kafka engine first, because they take longest."""
    seeds = range(first, first + count)
    of_kafka = [(KAFKA, seed) for seed in seeds if seed % KAFKA_SHARE == 0]
    others = [seed for seed in seeds if seed % KAFKA_SHARE]
    return [*of_kafka, *((EMBEDDED if seed % LOST_DISKS_SHARE else LOST_DISKS, seed) for seed in others)]
