"""How the nodes of `kshare up` and `kshare attach` are divided among processes: the option `--processes`.

`auto` is one process where the machine has at most FEW_PROCESSORS processors and no role has several nodes, and a
process for each node otherwise. On so few processors one process has the higher rates and the shorter latencies, with
less processor time and memory, since a record crosses no border between processes (docs/internals/performance.md). A
process for each role has its worth elsewhere: a node that fails is started again beside the others, and it can use more
processors. Containers and the Helm chart always have a process for each.
"""

from __future__ import annotations

from kshare.failure import BAD_USE, CommandFailed

AUTO = "auto"
FEW_PROCESSORS = 2
"""On more processors than these, nothing was measured."""
ROLES = 4
"""Nodes where there is one of each role: coordinator, share coordinator, leader and gateway."""


def is_one_process(processes: str, nodes: int, *, processors: int) -> bool:
    """Whether all `nodes` share one process; `processes` is `auto`, `1`, or the number of nodes. CommandFailed.

    `processors`: those that kshare may use.
    """
    if processes == AUTO:
        return nodes == ROLES and processors <= FEW_PROCESSORS
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
