"""The scenarios of Apache Kafka's system test of share consumers (share_consumer_test.py), on kshare.

Where it bounces brokers, every process of kshare is bounced, clean and hard. It looks whether everything was consumed;
here the checker judges every delivery and acknowledgement. `make test-real-faults`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.clients.delivery_history import HISTORY_ON
from support.clusters.kshare_cluster import KshareCluster
from support.clusters.restarted_roles import RestartedRole, RestartedRoles
from support.recorded.run import RecordedRun

pytestmark = [pytest.mark.real_faults, pytest.mark.timeout(600)]

MEMBERS = 3
BOUNCES = 2
RESUMES_WITHIN_S = 10.0
LEASE_S = 10.0
"""kshare.node.lease.ms. Until it ends, a gateway that was killed stays the broker of its partitions in the metadata."""
AFTER_FAILURE = 1000
"""Acknowledgements that the system test waits for after a failure."""
clean_or_hard = pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "hard"])


@contextmanager
def running(folder: Path, partitions: int = 3) -> Iterator[RecordedRun]:
    """A run of which every member has got records."""
    with (
        KshareCluster(folder, HISTORY_ON) as cluster,
        RecordedRun(cluster.bootstrap, cluster.failures, partitions=partitions) as run,
    ):
        wait_until_all_get_records(run)
        yield run


@contextmanager
def several_gateways(folder: Path) -> Iterator[tuple[RestartedRoles, RecordedRun]]:
    with (
        RestartedRoles(folder, HISTORY_ON) as cluster,
        RecordedRun(",".join(cluster.bootstraps), cluster.failures, members=MEMBERS) as run,
    ):
        yield cluster, run


def wait_until_all_get_records(run: RecordedRun) -> None:
    run.work_until(lambda: all(run.members.came.values()), "every member gets records")


def end(run: RecordedRun, place: int, *, is_clean: bool) -> None:
    if is_clean:
        run.members.stop(place)
    else:
        run.members.kill(place)


@pytest.mark.parametrize("partitions", [1, 3], ids=["single partition", "several partitions"])
def test_every_record_is_acknowledged_and_every_member_works(tmp_path: Path, partitions: int) -> None:
    with running(tmp_path, partitions=partitions) as run:
        run.work_until_accepted(AFTER_FAILURE)
        assert run.finish().unconfirmed_accepts == 0


@clean_or_hard
def test_bounces_of_every_process(tmp_path: Path, is_clean: bool) -> None:
    def bounce(role: RestartedRole) -> None:
        if is_clean:
            role.stop()
        else:
            role.kill()
        role.start()
        role.wait_ready()

    with several_gateways(tmp_path) as (cluster, run):
        wait_until_all_get_records(run)
        for name, role in cluster.roles.items():
            run.during(name, lambda role=role: bounce(role), resumes_within_s=RESUMES_WITHIN_S)  # type: ignore[misc]
        run.work_until_accepted(AFTER_FAILURE)
        run.finish()


@clean_or_hard
def test_a_gateway_that_fails_for_good(tmp_path: Path, is_clean: bool) -> None:
    with several_gateways(tmp_path) as (cluster, run):
        wait_until_all_get_records(run)
        gateway = cluster.roles["gateway-1"]
        resumes_within_s = RESUMES_WITHIN_S if is_clean else LEASE_S + RESUMES_WITHIN_S
        run.during("gateway-1", gateway.stop if is_clean else gateway.kill, resumes_within_s=resumes_within_s)
        run.work_until_accepted(AFTER_FAILURE)
        run.finish(cluster.bootstraps[1])


@clean_or_hard
@pytest.mark.parametrize("is_rolling", [True, False], ids=["rolling", "all at once"])
def test_bounces_of_members(tmp_path: Path, is_rolling: bool, is_clean: bool) -> None:
    with running(tmp_path) as run:
        for _ in range(BOUNCES):
            for place in range(MEMBERS):
                end(run, place, is_clean=is_clean)
                if is_rolling:
                    run.members.start(place)
                    wait_until_all_get_records(run)
            for place in range(0 if is_rolling else MEMBERS):
                run.members.start(place)
                wait_until_all_get_records(run)
        run.finish()


@clean_or_hard
@pytest.mark.parametrize("failed", [1, 2])
def test_members_that_fail_for_good(tmp_path: Path, failed: int, is_clean: bool) -> None:
    with running(tmp_path) as run:
        for place in range(failed):
            end(run, place, is_clean=is_clean)
        run.work_until_accepted(AFTER_FAILURE)
        run.finish()
