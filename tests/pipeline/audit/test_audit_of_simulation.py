"""The audit over the history that simulated leaders publish: none of its rules is broken, whatever dies; and where the
durability of writes is broken on purpose, the history alone shows it.

`--seeds N` takes seeds 1 to N, `--seed S` only S, as in tests/simulation.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from kshare_pipeline.audit.direct import audit_records
from kshare_pipeline.audit.findings import Finding, Severity, SharePartitionAudit
from support.simulation.delivery_history_rules import HistoryRun
from support.simulation.mutations import BROKEN_RULES
from support.simulation.plan import draw_plan

DEFAULT_SEEDS = (2, 3, 4, 6)
SEEDS_FOR_BROKEN_RULES = range(4, 31)
SHOWN_BY_THE_HISTORY = (
    "the share coordinator answers before its write is durable",
    "the leader answers acknowledgements before their state is durable",
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Roles log each fault."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "audited_seed" in metafunc.fixturenames:
        single = metafunc.config.getoption("--seed")
        count = metafunc.config.getoption("--seeds")
        seeds = DEFAULT_SEEDS if count is None else range(1, count + 1)
        metafunc.parametrize("audited_seed", seeds if single is None else [single])


def audits_of(run: HistoryRun) -> list[SharePartitionAudit]:
    return audit_records(run.records, lambda group: run.plan.delivery_count_limit)


def faults_in(audits: list[SharePartitionAudit]) -> list[Finding]:
    return [finding for audit in audits for finding in audit.findings if finding.severity is Severity.FAULT]


def test_the_history_of_a_seed_has_no_fault_and_accounts_for_every_offset(audited_seed: int) -> None:
    run = HistoryRun(draw_plan(audited_seed))
    outcome = run.run()
    assert not outcome.failed, outcome.report()
    audits = audits_of(run)
    assert faults_in(audits) == []
    assert len(audits) == len(run.plan.groups) * run.plan.partitions
    for audit in audits:
        assert audit.share_partition.topic == "orders"
        assert sum(audit.offsets.values()) == audit.end_offset - audit.first_offset
        assert audit.deliveries >= audit.offsets["accepted"]


@pytest.mark.parametrize("name", SHOWN_BY_THE_HISTORY)
def test_a_broken_rule_is_found_in_the_history(name: str) -> None:
    for seed in SEEDS_FOR_BROKEN_RULES:
        run = HistoryRun(draw_plan(seed), BROKEN_RULES[name]())
        run.run()
        found = {str(finding.rule) for finding in faults_in(audits_of(run))}
        if found & {"end_forgotten", "count_forgotten"}:
            return
    raise AssertionError(f"{len(SEEDS_FOR_BROKEN_RULES)} seeds did not show that {name}")
