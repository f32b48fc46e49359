"""The sizes of all caches and buffers of a node, derived from one budget: `kshare.memory.budget`.

The budget is resident memory (RSS): what the operating system and a container's limit count. So the memory of an idle
process comes off first (IDLE_BYTES). Of the rest, the caches get their shares, and a part stays for what no cache
counts: requests being worked on, and the allocator's fragments. A size that is set explicitly stays as it is.

A role in a process of its own has the budget for itself. In `kshare up`, all nodes share one: `shares_of_nodes`.
Without a value, a role has three quarters of the memory that its process may use, but at most MOST_ROLE_BYTES: a
container's limit is for it alone. A `kshare up` has an eighth, because a laptop runs other things too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kshare_core.configs import Configs, InvalidConfig, process_configs
from kshare_runtime.ports import StoreMemory
from kshare_servicekit.existing_cluster import ENGINE, KAFKA
from kshare_servicekit.memory.limit import usable_memory_bytes

BUDGET, QUIET = "kshare.memory.budget", "kshare.memory.quiet.ms"
MEMTABLES, BLOCK_CACHE = "kshare.store.memtable.bytes", "kshare.store.block.cache.bytes"
GATEWAY_CACHE, QUEUED = "kshare.gateway.cache.bytes", "kshare.queued.max.bytes"
TAILS, HISTORY = "kshare.leader.tail.bytes", "kshare.delivery.history.buffer.bytes"
WINDOW, PARTITION_WINDOW = "kshare.upstream.window.bytes", "kshare.upstream.partition.window.bytes"

MEBIBYTE = 1024 * 1024
IDLE_BYTES = 72 * MEBIBYTE
"""Resident memory of an idle role (docs/performance.md)."""
IDLE_SUPERVISOR_BYTES = 48 * MEBIBYTE
IDLE_SINGLE_PROCESS_BYTES = 104 * MEBIBYTE
LEAST_CACHE_BYTES = 24 * MEBIBYTE
"""What a node needs beyond an idle process."""
MOST_CACHE_BYTES = 160 * MEBIBYTE
"""What `kshare up` takes for each node by default, at most, beyond an idle process."""
MOST_ROLE_BYTES = 1024 * MEBIBYTE

_NODE_WEIGHTS = {"leader": 0.6, "gateway": 0.25, "share-coordinator": 0.075, "coordinator": 0.075}
_WEIGHTS_IN_ONE_PROCESS = {"leader": 0.7, "gateway": 0.15, "share-coordinator": 0.075, "coordinator": 0.075}
"""A gateway beside its leaders caches no batches."""
_OF_STORES = {MEMTABLES: 0.5, BLOCK_CACHE: 0.35}
# Tails have most of a leader: a drain of records that they hold is up to a third faster than one from the store.
_OF_ROLES: Mapping[str, Mapping[str, float]] = {
    "leader": {TAILS: 0.58, MEMTABLES: 0.16, BLOCK_CACHE: 0.04, QUEUED: 0.09, HISTORY: 0.02},
    "gateway": {GATEWAY_CACHE: 0.40, QUEUED: 0.45},
    "coordinator": _OF_STORES,
    "share-coordinator": _OF_STORES,
}
_OF_KAFKA_ENGINE = {WINDOW: 0.65, QUEUED: 0.15, HISTORY: 0.05}
_LARGEST = {
    HISTORY: 8 * MEBIBYTE,
    MEMTABLES: 128 * MEBIBYTE,
    QUEUED: 512 * MEBIBYTE,
    PARTITION_WINDOW: 16 * MEBIBYTE,
}
"""More is of no use: a reopened store reads all that its memtables had from its log again."""
_SMALLEST = {WINDOW: MEBIBYTE}
_WINDOW_PARTS = 4
"""A partition's window is at most this part of all windows."""


def least_bytes(nodes: int, *, one_process: bool) -> int:
    """The smallest budget of a `kshare up` with so many nodes."""
    return _idle_bytes(nodes, one_process=one_process) + nodes * LEAST_CACHE_BYTES


def budget_of_role(configs: Configs, memory_bytes: int | None = None) -> int:
    """The budget of a role with a process of its own; InvalidConfig. `memory_bytes`: what the process may use."""
    available = usable_memory_bytes() if memory_bytes is None else memory_bytes
    least = IDLE_BYTES + LEAST_CACHE_BYTES
    default = max(least, min(available * 3 // 4, MOST_ROLE_BYTES))
    return _given(configs, least, available, "a role", default)


def budget_of_all(configs: Configs, nodes: int, *, one_process: bool, memory_bytes: int | None = None) -> int:
    """The budget of a `kshare up` with so many nodes; InvalidConfig. `memory_bytes`: what it may use."""
    available = usable_memory_bytes() if memory_bytes is None else memory_bytes
    least = least_bytes(nodes, one_process=one_process)
    most = _idle_bytes(nodes, one_process=one_process) + nodes * MOST_CACHE_BYTES
    where = "one process" if one_process else "a process each"
    default = max(least, min(available // 8, most))
    return _given(configs, least, available, f"{nodes} nodes in {where}", default)


def _given(configs: Configs, least: int, available: int, of_what: str, default: int) -> int:
    """The configured budget, or the default for -1; InvalidConfig says what is allowed."""
    budget = configs.integer(BUDGET)
    if budget == -1:
        return default
    if not least <= budget <= available:
        raise InvalidConfig(
            f"{BUDGET} is {budget}: for {of_what} it must be from {least} to {available}, the memory that may be used "
            "here, or -1 for the default"
        )
    return budget


def _idle_bytes(nodes: int, *, one_process: bool) -> int:
    return IDLE_SINGLE_PROCESS_BYTES if one_process else nodes * IDLE_BYTES + IDLE_SUPERVISOR_BYTES


def shares_of_nodes(budget: int, roles: Sequence[str], *, one_process: bool) -> dict[str, int]:
    """What one node of each role may cache; `roles` has the role of every node of a `kshare up`."""
    cached = budget - _idle_bytes(len(roles), one_process=one_process)
    weights = _WEIGHTS_IN_ONE_PROCESS if one_process else _NODE_WEIGHTS
    return {role: int(cached * weights[role] / count) for role, count in Counter(roles).items()}


def budgets_of_processes(budget: int, roles: Sequence[str]) -> dict[str, int]:
    """The budget of the process of one node of each role, for a `kshare up` with a process for each node."""
    shares = shares_of_nodes(budget, roles, one_process=False)
    return {role: IDLE_BYTES + share for role, share in shares.items()}


def with_cache_sizes(configs: Configs, role: str, cache_bytes: int) -> Configs:
    """The configs with the sizes of a node's caches that are not set, derived from what the node may cache.

    Other roles, such as the pipeline, have no caches.
    """
    has_kafka_engine = role == "leader" and configs.text(ENGINE) == KAFKA
    sizes: dict[str, int] = {}
    for name, share in (_OF_KAFKA_ENGINE if has_kafka_engine else _OF_ROLES.get(role, {})).items():
        derived = min(int(cache_bytes * share), _LARGEST.get(name, cache_bytes))
        sizes[name] = max(derived, _SMALLEST.get(name, 0))
    if WINDOW in sizes:
        window = configs.integer(WINDOW) if configs.is_set(WINDOW) else sizes[WINDOW]
        sizes[PARTITION_WINDOW] = min(_LARGEST[PARTITION_WINDOW], window // _WINDOW_PARTS)
    return configs.with_defaults(sizes)


def role_configs(
    texts: Mapping[str, str], role: str, budget: int | None = None, *, memory_bytes: int | None = None
) -> tuple[Configs, list[str]]:
    """The configs of a role with a process of its own, and warnings (`process_configs`); InvalidConfig.

    `budget`: what a `kshare up` gives to the process, in place of the config.
    """
    configs, warnings = process_configs(texts)
    own = budget_of_role(configs, memory_bytes) if budget is None else budget
    return with_cache_sizes(configs, role, max(LEAST_CACHE_BYTES, own - IDLE_BYTES)), warnings


def store_memory(configs: Configs) -> StoreMemory:
    """The memory of a node's store."""
    return StoreMemory(configs.integer(MEMTABLES), configs.integer(BLOCK_CACHE))
