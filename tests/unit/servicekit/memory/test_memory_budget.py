"""One budget from which all cache sizes derive."""

from __future__ import annotations

import pytest

from kshare_core.configs import DynamicConfigs, InvalidConfig, process_configs
from kshare_servicekit.memory.budget import (
    BLOCK_CACHE,
    GATEWAY_CACHE,
    HISTORY,
    IDLE_BYTES,
    IDLE_SUPERVISOR_BYTES,
    MEBIBYTE,
    MEMTABLES,
    PARTITION_WINDOW,
    QUEUED,
    TAILS,
    WINDOW,
    budget_of_all,
    budget_of_role,
    budgets_of_processes,
    least_bytes,
    role_configs,
    shares_of_nodes,
    store_memory,
    with_cache_sizes,
)

GIBIBYTE = 1024 * MEBIBYTE
ROLES = ["coordinator", "share-coordinator", "leader", "gateway"]
SIZES = {
    "leader": (TAILS, MEMTABLES, BLOCK_CACHE, QUEUED, HISTORY),
    "gateway": (GATEWAY_CACHE, QUEUED),
    "coordinator": (MEMTABLES, BLOCK_CACHE),
    "share-coordinator": (MEMTABLES, BLOCK_CACHE),
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("budget", [128 * MEBIBYTE, 300 * MEBIBYTE, 4 * GIBIBYTE])
def test_the_caches_of_a_role_and_an_idle_process_fit_the_budget(role: str, budget: int) -> None:
    configs, _ = role_configs({"kshare.memory.budget": str(budget)}, role, memory_bytes=8 * GIBIBYTE)
    sizes = [configs.integer(name) for name in SIZES[role]]
    assert all(size > 0 for size in sizes)
    assert IDLE_BYTES + sum(sizes) <= budget
    twice, _ = role_configs({"kshare.memory.budget": str(2 * budget)}, role, memory_bytes=8 * GIBIBYTE)
    assert [twice.integer(name) for name in SIZES[role]] > sizes


def test_the_windows_of_an_existing_cluster_take_the_place_of_tails_and_store() -> None:
    texts = {"kshare.memory.budget": str(200 * MEBIBYTE), "kshare.engine": "kafka"}
    configs, _ = role_configs(texts, "leader", memory_bytes=GIBIBYTE)
    window = configs.integer(WINDOW)
    assert 64 * MEBIBYTE < window < 128 * MEBIBYTE
    assert configs.integer(PARTITION_WINDOW) == 16 * MEBIBYTE
    small, _ = role_configs(texts | {WINDOW: str(8 * MEBIBYTE)}, "leader", memory_bytes=GIBIBYTE)
    assert small.integer(WINDOW) == 8 * MEBIBYTE
    assert small.integer(PARTITION_WINDOW) == 2 * MEBIBYTE


def test_a_size_that_is_set_stays_also_under_dynamic_configs() -> None:
    texts = {TAILS: str(5 * MEBIBYTE), "kshare.memory.budget": str(200 * MEBIBYTE)}
    static, _ = role_configs(texts, "leader", memory_bytes=GIBIBYTE)
    configs = DynamicConfigs(static)
    assert configs.integer(TAILS) == 5 * MEBIBYTE
    assert configs.integer(HISTORY) == static.integer(HISTORY) < 8 * MEBIBYTE
    assert store_memory(configs) == (static.integer(MEMTABLES), static.integer(BLOCK_CACHE))


@pytest.mark.parametrize(
    ("memory_bytes", "budget"), [(GIBIBYTE, 768 * MEBIBYTE), (64 * GIBIBYTE, GIBIBYTE), (MEBIBYTE, 96 * MEBIBYTE)]
)
def test_a_role_has_three_quarters_of_its_memory_within_bounds(memory_bytes: int, budget: int) -> None:
    assert budget_of_role(process_configs({})[0], memory_bytes) == budget


@pytest.mark.parametrize(
    ("memory_bytes", "four", "one"),
    [(2 * GIBIBYTE, 432, 256), (4 * GIBIBYTE, 512, 512), (64 * GIBIBYTE, 976, 744)],
)
def test_all_roles_of_a_machine_have_an_eighth_within_bounds(memory_bytes: int, four: int, one: int) -> None:
    configs = process_configs({})[0]
    assert budget_of_all(configs, 4, one_process=False, memory_bytes=memory_bytes) == four * MEBIBYTE
    assert budget_of_all(configs, 4, one_process=True, memory_bytes=memory_bytes) == one * MEBIBYTE


@pytest.mark.parametrize("budget", [0, 1, 96 * MEBIBYTE - 1, GIBIBYTE + 1])
def test_a_budget_that_cannot_be_kept_says_what_is_allowed(budget: int) -> None:
    configs = process_configs({"kshare.memory.budget": str(budget)})[0]
    with pytest.raises(InvalidConfig, match=rf"is {budget}: for a role .* from {96 * MEBIBYTE} to {GIBIBYTE}, .* -1"):
        budget_of_role(configs, GIBIBYTE)
    with pytest.raises(InvalidConfig, match=rf"for 4 nodes in a process each .* from {432 * MEBIBYTE} to {GIBIBYTE},"):
        budget_of_all(configs, 4, one_process=False, memory_bytes=GIBIBYTE)


def test_a_budget_below_minus_one_is_no_value_of_the_config() -> None:
    with pytest.raises(InvalidConfig, match=r"kshare\.memory\.budget"):
        process_configs({"kshare.memory.budget": "-2"})


@pytest.mark.parametrize("roles", [ROLES, [*ROLES, "leader", "leader", "share-coordinator"]])
def test_the_processes_of_a_machine_fit_the_budget(roles: list[str]) -> None:
    budget = 2 * least_bytes(len(roles), one_process=False)
    parts = budgets_of_processes(budget, roles)
    assert IDLE_SUPERVISOR_BYTES + sum(parts[role] for role in roles) <= budget
    assert all(part > IDLE_BYTES for part in parts.values())
    assert sum(shares_of_nodes(budget, roles, one_process=True)[role] for role in roles) < budget


def test_the_part_of_a_process_overrides_the_budget_of_all() -> None:
    texts = {"kshare.memory.budget": str(768 * MEBIBYTE)}
    part, _ = role_configs(texts, "leader", 150 * MEBIBYTE)
    assert part.integer(TAILS) == with_cache_sizes(process_configs(texts)[0], "leader", 78 * MEBIBYTE).integer(TAILS)
