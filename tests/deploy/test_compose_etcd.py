"""deploy/compose/etcd.yml: two coordinators that share their metadata in an etcd, each started again in turn."""

from __future__ import annotations

from functools import partial

import pytest

from support.clients.delivery import wait_for
from support.clients.rolling_load import RollingLoad
from support.clusters.compose_stack import running_stack
from support.environment.docker import debian_image
from support.environment.prometheus import PrometheusAnswers

PARTITIONS = 6
LONGEST_PAUSE_S = 5.0
LONGEST_PAUSE_WITHOUT_ETCD_S = 10.0
"""There is one etcd here. While it is away nobody can commit; and it elects itself only a second after it is back."""


@pytest.mark.timeout(1_200)
@pytest.mark.quiet
@pytest.mark.real_faults
def test_coordinators_and_etcd_are_restarted_one_at_a_time() -> None:
    files = ("docker-compose.yml", "deploy/compose/etcd.yml")
    with running_stack(files, {"ETCD_IMAGE": debian_image("etcd")}) as stack:
        assert stack.kshare("nodes").count("leader") >= 2
        stack.compose("--profile", "observability", "up", "--detach", "--no-deps", "--no-recreate", "prometheus")
        prometheus = PrometheusAnswers(f"127.0.0.1:{stack.environment['PROMETHEUS_PORT']}")
        wait_for(lambda: prometheus.value('sum(up{component="coordinator-2"})') == 1, "it is scraped, too", 60)
        with RollingLoad(stack.bootstraps, PARTITIONS) as load:
            for service in ("coordinator", "coordinator-2", "etcd"):
                (container,) = stack.containers(service)
                load.during(service, partial(stack.restart, container))
            load.finish()
        load.check_pauses(LONGEST_PAUSE_S, {"etcd": LONGEST_PAUSE_WITHOUT_ETCD_S})
