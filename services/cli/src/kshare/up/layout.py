"""How the nodes of `kshare up` and `kshare attach` are divided among processes: the option `--processes`.

For `kshare up`, `auto` is a process for each node. One process for all of them has the higher rates, needs less
processor time and memory, and at 500 records a second beside busy clients answers sooner, since a record crosses no
border between processes (docs/internals/performance.md). But the system gives it one share of the processors: at 5,000
records a second beside busy clients it falls behind, with a p99 three times as long. And a node that fails takes the
others with it, while a process of its own is started again beside the others.

In front of an existing cluster, `auto` is one process where the machine has at most ATTACHED_PROCESSORS processors and
no role has several nodes. It keeps nothing of its own that a failing node could take along, and the hops between
processes cost half of the rate there.
"""

from __future__ import annotations

from kshare.failure import BAD_USE, CommandFailed

AUTO = "auto"
ATTACHED_PROCESSORS = 2
"""On more processors than these, nothing was measured."""
ROLES = 4
"""Nodes where there is one of each role: coordinator, share coordinator, leader and gateway."""


def is_one_process(processes: str, nodes: int, *, is_attached: bool, processors: int) -> bool:
    """Whether all `nodes` share one process; `processes` is `auto`, `1`, or the number of nodes. CommandFailed.

    `is_attached`: the records and the state are in an existing cluster. `processors`: those that kshare may use.
    """
    if processes == AUTO:
        return is_attached and nodes == ROLES and processors <= ATTACHED_PROCESSORS
    if processes in ("1", str(nodes)):
        return processes == "1"
    text = f"--processes must be {AUTO}, 1, or {nodes}, a process for each node that the configuration asks for"
    raise CommandFailed(f"{text}; found {processes!r}", BAD_USE)


def chosen_processes(processes: str, single_process: bool) -> str:
    """What `--processes` and `--single-process` ask for together. CommandFailed."""
    if not single_process:
        return processes
    if processes not in (AUTO, "1"):
        raise CommandFailed(f"--single-process and --processes {processes} contradict each other", BAD_USE)
    return "1"
