"""Every role is restarted in turn under load: no record is lost, and no client is paused for long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.clients.rolling_load import RollingLoad, longest_gap
from support.clients.several_coordinator_load import several_coordinators
from support.clusters.attached_roles import roles_of_tests
from support.clusters.engines import is_attached
from support.clusters.restarted_roles import RestartedRoles
from support.environment.etcd import EtcdServer

PARTITIONS = 12
LONGEST_PAUSE_S = 5.0
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


@contextmanager
def shared_metadata(folder: Path) -> Iterator[dict[str, str]]:
    """Settings of two coordinators: with etcd, unless their metadata are in the existing cluster."""
    if is_attached():
        yield {}
        return
    folder.mkdir()
    etcd = EtcdServer(folder)
    try:
        yield several_coordinators(etcd.endpoint)
    finally:
        etcd.stop()


def restart_all(cluster: RestartedRoles) -> None:
    with RollingLoad(cluster.bootstraps, PARTITIONS, existing_cluster=cluster.existing_cluster) as load:
        for name, role in cluster.roles.items():
            load.during(name, role.restart)
        load.finish()
    load.check_pauses(LONGEST_PAUSE_S)


@pytest.mark.quiet
@pytest.mark.timeout(180)
def test_every_role_one_after_the_other(tmp_path: Path) -> None:
    with roles_of_tests(tmp_path, SETTINGS) as cluster:
        restart_all(cluster)


@pytest.mark.quiet
@pytest.mark.timeout(180)
def test_with_two_coordinators(tmp_path: Path) -> None:
    with (
        shared_metadata(tmp_path / "etcd") as settings,
        roles_of_tests(tmp_path / "roles", {**SETTINGS, **settings}, coordinators=2) as cluster,
    ):
        restart_all(cluster)


@pytest.mark.parametrize(
    ("times", "longest"),
    [
        ([1.0, 2.0, 9.0, 11.0, 20.0], (9.0, 6.0)),
        ([1.0, 2.0, 9.0, 11.0, 14.0, 29.0], (7.0, -3.0)),
        ([1.0, 10.5], (19.5, 5.5)),
        ([1.0], (29.0, -4.0)),
        ([40.0], (25.0, 0.0)),
    ],
)
def test_what_a_pause_is(times: list[float], longest: tuple[float, float]) -> None:
    """Whatever overlaps with 5 to 12, and when after 5 it began; the load ends at 30."""
    assert longest_gap(times, 5.0, 12.0, 30.0) == pytest.approx(longest)
