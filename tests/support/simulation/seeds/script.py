"""One history as data: the plan, the faults and the batches that are produced, each with its time.

A seed draws its script; a shrunk one (`shrink`) is kept as a TOML file, and run again by a test. Times are seconds from
the moment when the cluster is ready.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from support.simulation.activities.operators import SCALED_ROLES
from support.simulation.cluster import Shape
from support.simulation.faults import Fault, draw_faults
from support.simulation.plan import SCALING, Plan
from support.simulation.swarm import fault_kinds_of

NO_TRANSACTION = -1
BURST_LIMIT = 3
"""So many batches of a producer may begin at one moment."""
JOINING = 3
"""So many further nodes of each role have faults."""
JOINED_FROM = 0.1
"""After so much of the time of the faults they begin, because nodes have to join first."""
JOINED_DRAWS = 3
"""So many times the seed's number of faults is drawn for them; most of those hit other hosts, and are dropped."""
PLAIN_SIZES, TRANSACTIONAL_SIZES = (1, 3, 10, 25), (1, 3, 10)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that a producer sends at `at` or, where earlier ones are late, after them.

    A transaction begins at the time of its first batch.
    """

    at: float
    producer: str
    partition: int
    records: int
    transaction: int = NO_TRANSACTION


@dataclass(frozen=True, slots=True)
class Script:
    plan: Plan
    faults: tuple[Fault, ...]
    work: tuple[Batch, ...]

    def size(self) -> str:
        records = sum(batch.records for batch in self.work)
        return f"{len(self.faults)} faults, {len(self.work)} batches of {records} records"


def rounded(script: Script) -> Script:
    """With the times and strengths that a file has."""
    return Script(
        script.plan,
        tuple(
            replace(fault, at=_round(fault.at), duration=_round(fault.duration), strength=_round(fault.strength))
            for fault in script.faults
        ),
        tuple(replace(batch, at=_round(batch.at)) for batch in script.work),
    )


def _round(value: float) -> float:
    return round(value, 3)


def draw_script(plan: Plan, hosts: Sequence[str]) -> Script:
    """What the seed of the plan draws, with faults of these hosts."""
    faults = draw_faults(
        random.Random(f"{plan.seed}/faults"),
        hosts,
        start=0.0,
        end=plan.fault_seconds,
        count=plan.fault_count,
        kinds_of_fault=fault_kinds_of(plan),
    )
    if plan.fault_count:
        faults += [*draw_single_faults(plan, hosts), *draw_faults_of_joined(plan, hosts)]
        faults.sort(key=lambda fault: (fault.at, fault.name))
    return Script(plan, tuple(faults), draw_work(plan))


def draw_single_faults(plan: Plan, hosts: Sequence[str]) -> Iterator[Fault]:
    """Faults that a seed has once at most, each kind from a random stream of its own."""
    for kind in [kind for kind in fault_kinds_of(plan) if kind.seeds_share]:
        draw = random.Random(f"{plan.seed}/{kind.name}")
        if kind.is_possible(hosts) and draw.random() < kind.seeds_share:
            yield kind.draw(draw, hosts, plan.fault_seconds * draw.random())


def joining(plan: Plan, hosts: Sequence[str]) -> list[str]:
    """The names that the next nodes get, where nodes join while the faults last."""
    if SCALING not in plan.activities:
        return []
    numbers = {role: [int(name[len(role) + 1 :]) for name in hosts if _role(name) == role] for role in SCALED_ROLES}
    return [f"{role}-{max(found) + further}" for role, found in numbers.items() for further in range(1, JOINING + 1)]


def draw_faults_of_joined(plan: Plan, hosts: Sequence[str]) -> list[Fault]:
    """Faults of nodes that may have joined by then, alone or with one other host; from a random stream of their own.

    Those of a node that has not joined, or has left again, hit nothing.
    """
    joined = set(joining(plan, hosts))
    if not joined:
        return []
    faults = draw_faults(
        random.Random(f"{plan.seed}/faults of joined nodes"),
        [*hosts, *sorted(joined)],
        start=JOINED_FROM * plan.fault_seconds,
        end=plan.fault_seconds,
        count=JOINED_DRAWS * plan.fault_count,
        kinds_of_fault=fault_kinds_of(plan),
    )
    return [fault for fault in faults if joined & set(fault.hosts) and len(fault.hosts) <= 2]


def _role(host: str) -> str:
    return host.rpartition("-")[0]


def draw_work(plan: Plan) -> tuple[Batch, ...]:
    draw = random.Random(f"{plan.seed}/work")
    work: list[Batch] = []
    for number in range(plan.producers):
        name, made, at, left = f"p{number + 1}", 0, 0.0, 0
        while made < plan.records // plan.producers:
            if not left:
                at, left = plan.fault_seconds * draw.random(), draw.randint(1, BURST_LIMIT)
            left -= 1
            size = draw.choice(PLAIN_SIZES)
            work.append(Batch(at, name, draw.randrange(plan.partitions), size))
            made += size
    for number in range(plan.transactional_producers):
        starts = sorted(plan.fault_seconds * draw.random() for _ in range(plan.transactions))
        for index, at in enumerate(starts):
            made, wanted = 0, draw.choice((1, 5, 20))
            while made < wanted:
                size = draw.choice(TRANSACTIONAL_SIZES)
                work.append(Batch(at, f"t{number + 1}", draw.randrange(plan.partitions), size, index))
                made += size
    return tuple(sorted(work, key=lambda batch: batch.at))


# As a file

_COMMENT = """\
# {title}
# Times are in seconds from the moment when the cluster is ready.
# Written by support.simulation.seeds.shrink, replayed by tests/simulation/swarm/test_kept_scripts.py.
"""


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(_round(value))
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f'"{key}" = {_text(each)}' for key, each in value.items()) + "}"
    assert isinstance(value, list | tuple), value
    return "[" + ", ".join(_text(each) for each in value) + "]"


ALWAYS = ("at", "partition")
"""Fields that are shown also where they are 0."""


def _rows(rows: Iterable[Fault | Batch]) -> str:
    lines = []
    for row in rows:
        values = {field.name: getattr(row, field.name) for field in fields(row)}
        shown = {
            name: value for name, value in values.items() if name in ALWAYS or value not in ((), 0.0, NO_TRANSACTION)
        }
        lines.append("  {" + ", ".join(f"{name} = {_text(value)}" for name, value in shown.items()) + "},\n")
    return "[\n" + "".join(lines) + "]\n"


def write_script(script: Script, title: str, *, rule: str = "", mutation: str = "") -> str:
    """`rule`: what it breaks, with the planted bug `mutation` or, where it is empty, with a bug of the product."""
    lines = [_COMMENT.format(title=title), f"rule = {_text(rule)}\n", f"mutation = {_text(mutation)}\n"]
    lines += [f"faults = {_rows(script.faults)}", f"work = {_rows(script.work)}", "\n[plan]\n"]
    plan = asdict(script.plan)
    shape = plan.pop("shape")
    configs = shape.pop("configs")
    lines += [f"{name} = {_text(value)}\n" for name, value in plan.items()]
    lines += ["\n[plan.shape]\n", *(f"{name} = {_text(value)}\n" for name, value in shape.items())]
    lines += ["\n[plan.shape.configs]\n", *(f'"{name}" = {_text(value)}\n' for name, value in configs.items())]
    return "".join(lines)


@dataclass(frozen=True, slots=True)
class KeptScript:
    script: Script
    rule: str
    mutation: str


def read_script(path: Path) -> KeptScript:
    content = tomllib.loads(path.read_text())
    plan: dict[str, Any] = {name: _as_tuple(value) for name, value in content["plan"].items() if name != "shape"}
    script = Script(
        Plan(shape=Shape(**{name: _as_tuple(value) for name, value in content["plan"]["shape"].items()}), **plan),
        tuple(Fault(**{name: _as_tuple(value) for name, value in row.items()}) for row in content["faults"]),
        tuple(Batch(**row) for row in content["work"]),
    )
    return KeptScript(script, content["rule"], content["mutation"])


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
