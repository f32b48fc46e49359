"""The audit over the history that simulated leaders publish: none of its rules is broken, whatever dies; and where the
durability of writes is broken on purpose, the history alone shows it.

`--seeds N` takes seeds 1 to N, `--seed S` only S, as in tests/simulation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from kshare.audit.direct import audit_records
from kshare.audit.findings import Finding, Severity, SharePartitionAudit
from kshare_core.delivery_history import HISTORY_TOPIC, HistoryRecord, decode_history_record
from support.simulation.kafka_clients.admin import Admin
from support.simulation.moving_partitions import MovingRun, moving_plan
from support.simulation.mutations.catalogue import BY_NAME
from support.simulation.plan import draw_plan
from support.simulation.rules.delivery_history import ON, PUBLISHED_WITHIN_S, HistoryRun
from support.simulation.scenario import Account

DEFAULT_SEEDS = (2, 3, 4, 6)
SHOWN_BY_THE_HISTORY = {
    "the disk of a share coordinator says that writes are durable before they are": range(5, 31),
    "the leader answers acknowledgements before their state is durable": range(4, 31),
}
"""Seeds of which one must show it; the first ones do at the time of writing."""


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


class MovingHistoryRun(MovingRun):
    """With the history on; `records` are its when the run is over."""

    records: Sequence[HistoryRecord] = ()

    async def _read_everything(self, admin: Admin, account: Account) -> None:
        await super()._read_everything(admin, account)
        await asyncio.sleep(PUBLISHED_WITHIN_S)
        self.records = [
            decode_history_record(record.value.encode())
            for partition in range(await admin.partition_count(HISTORY_TOPIC))
            for record in await admin.read_log(HISTORY_TOPIC, partition)
        ]


def test_partitions_that_move_between_leaders_have_one_history() -> None:
    plan = moving_plan(3)
    shape = replace(plan.shape, configs={**plan.shape.configs, **ON})
    run = MovingHistoryRun(replace(plan, shape=shape), rounds=3)
    outcome = run.run()
    assert not outcome.failed, outcome.report()
    assert {record.leader for record in run.records} == {1, 2}
    audits = audit_records(run.records, lambda group: plan.delivery_count_limit)
    assert faults_in(audits) == []
    assert len(audits) == len(plan.groups) * plan.partitions
    assert not {"available", "acquired", "unknown"} & {outcome for audit in audits for outcome in audit.offsets}


@pytest.mark.parametrize("name", SHOWN_BY_THE_HISTORY)
def test_a_broken_rule_is_found_in_the_history(name: str) -> None:
    for seed in SHOWN_BY_THE_HISTORY[name]:
        run = HistoryRun(draw_plan(seed), BY_NAME[name].mutation())
        run.run()
        found = {str(finding.rule) for finding in faults_in(audits_of(run))}
        if found & {"end_forgotten", "count_forgotten"}:
            return
    raise AssertionError(f"no seed showed that {name}")
