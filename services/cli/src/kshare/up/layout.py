"""How the nodes of a `kshare up` are divided among processes: the option `--processes`.

`auto` is a process for each node. One process for all of them has the higher rates, needs less processor time and
memory, and at 500 records a second beside busy clients answers sooner, since a record crosses no border between
processes (docs/performance.md). But the system gives it one share of the processors: at 5,000 records a second beside
busy clients it falls behind, with a p99 three times as long. And a node that fails takes the others with it, while a
process of its own is started again beside the others.
"""

from __future__ import annotations

from kshare.failure import BAD_USE, CommandFailed

AUTO = "auto"


def is_one_process(processes: str, nodes: int) -> bool:
    """Whether all `nodes` share one process; `processes` is `auto`, `1`, or the number of nodes. CommandFailed."""
    if processes in (AUTO, "1", str(nodes)):
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
