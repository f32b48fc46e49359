"""The profile "pipeline" of docker-compose.yml: a container with Spark makes a report of what workers did."""

from __future__ import annotations

import pytest

from support.clients.delivery import Reader, new_group, new_topic, produce, wait_for
from support.clusters.compose_stack import Stack, running_stack
from support.environment.docker import docker, image
from support.environment.prometheus import PrometheusAnswers

pytestmark = [pytest.mark.large_image, pytest.mark.timeout(1_800)]

RECORDS = 200
REPORT = "/var/lib/kshare/report.html"


def report(stack: Stack, container: str) -> str:
    """The page, or nothing where there is none yet."""
    script = f"test ! -e {REPORT} || cat {REPORT}"
    return docker("exec", container, "sh", "-c", script, environment=stack.environment)


def test_the_report_of_what_workers_did() -> None:
    image("pipeline")
    often = {
        "KSHARE_MARTS_INTERVAL_MS": "1000",
        "KSHARE_TRIGGER_INTERVAL_MS": "1000",
    }
    with running_stack(variables=often) as stack:
        bootstrap = stack.bootstraps[0]
        topic, group = new_topic(bootstrap), new_group(bootstrap)
        produce(bootstrap, topic, map(str, range(RECORDS)))
        with Reader(bootstrap, group, topic) as reader:
            reader.accept(RECORDS)
        stack.compose("--profile", "pipeline", "up", "--detach", "--no-deps", "--no-recreate", "pipeline")
        (container,) = stack.containers("pipeline")
        wait_for(lambda: group in report(stack, container), "the report names the group", timeout_s=300)
        stack.wait_until_healthy(container)
        stack.compose("--profile", "observability", "up", "--detach", "--no-deps", "--no-recreate", "prometheus")
        prometheus = PrometheusAnswers(f"127.0.0.1:{stack.environment['PROMETHEUS_PORT']}")
        wait_for(lambda: prometheus.value('sum(up{component="pipeline"})') == 1, "its metrics are scraped", 60)
        docker("stop", "--time", "30", container, environment=stack.environment)
        code = docker("inspect", "--format", "{{.State.ExitCode}}", container, environment=stack.environment)
        assert code.strip() == "0"
