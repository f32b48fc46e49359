"""Dashboards: every query finds data in a live system under load, in which no alert rings."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from support.clients.administration import alter_group
from support.clients.delivery import ACCEPT, REJECT, RELEASE, Reader, new_topic, produce, wait_for
from support.clusters.kshare_cluster import KshareCluster
from support.environment.prometheus import Prometheus

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "deploy/observability/alerts.yaml"
DASHBOARDS = ROOT / "helm/kshare/files/dashboards"
PATIENCE_S = 90.0
CONFIGS = {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": "dlq.workers"}


def dashboards_module() -> ModuleType:
    specification = importlib.util.spec_from_file_location("dashboards", ROOT / "deploy/observability/dashboards.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_dashboards_are_what_their_tables_say() -> None:
    module = dashboards_module()
    assert {path.stem for path in DASHBOARDS.iterdir()} == set(module.DASHBOARDS)
    for name, dashboard in module.DASHBOARDS.items():
        text = (DASHBOARDS / f"{name}.json").read_text()
        assert text == module.rendered(name, dashboard), "run python deploy/observability/dashboards.py"


def queries() -> list[tuple[str, str]]:
    """Where each is, and its text with Grafana's variables filled in."""
    found = []
    for path in sorted(DASHBOARDS.iterdir()):
        document: dict[str, Any] = json.loads(path.read_text())
        for panel in document["panels"]:
            for target in panel["targets"]:
                text = target["expr"].replace("$__rate_interval", "30s")
                found.append((f"{path.stem}: {panel['title']}", re.sub(r"\$\w+", ".*", text)))
    return found


class Work(threading.Thread):
    """A worker that accepts, releases and rejects records until it is told to stop. Rejected ones make dead letters."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._address = bootstrap
        self._stop_asked = threading.Event()
        self.failure: BaseException | None = None

    def __enter__(self) -> Work:
        new_topic(self._address, 2, name="jobs")
        new_topic(self._address, name="dlq.workers", errors_deadletterqueue_group_enable="true")
        alter_group(self._address, "workers", CONFIGS)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_asked.set()
        self.join(60)
        assert self.failure is None, self.failure

    def run(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._address})
        try:
            with Reader(self._address, "workers", "jobs") as reader:
                while not self._stop_asked.is_set():
                    with pytest.raises(KafkaException):  # an error for the dashboards
                        admin.delete_topics(["missing"])["missing"].result(30)
                    produce(self._address, "jobs", ["x" * 100] * 20)
                    for kind in (RELEASE, ACCEPT, REJECT):
                        produce(self._address, "jobs", ["one more"], partition=1)
                        reader.take()
                        reader.settle(kind)
        except BaseException as failure:
            self.failure = failure


@pytest.mark.timeout(240)
def test_every_query_finds_data_in_a_system_under_load(tmp_path: Path) -> None:
    options = ["--metrics-listen", "127.0.0.1:0"]
    with KshareCluster(tmp_path / "cluster", options=options) as cluster:
        addresses = re.findall(r"metrics of [a-z -]+: http://([0-9.:]+)/metrics", cluster.log_text())
        assert len(addresses) == 4
        with Prometheus(tmp_path / "prometheus", addresses, ALERTS) as prometheus, Work(cluster.bootstrap):
            missing = queries()
            deadline = time.monotonic() + PATIENCE_S
            while missing := [query for query in missing if not has_data(prometheus, query[1])]:
                assert time.monotonic() < deadline, missing
                time.sleep(1)
            accepted = "sum(kshare_leader_share_acknowledged_records_total{group='workers',type='accept'})"
            wait_for(lambda: value_of(prometheus, accepted) > 0, "acceptances are counted")
            wait_for(lambda: value_of(prometheus, "sum(up)") == 4, "every role answers")
            firing = {labels["alertname"] for labels, _ in prometheus.query("ALERTS{alertstate='firing'}")}
            assert firing <= {"KshareDeadLettersGrow"}, "a healthy system is quiet"


def value_of(prometheus: Prometheus, text: str) -> float:
    """Of a query with one value; 0 while it has none, as after a scrape that took too long."""
    return sum(value for _, value in prometheus.query(text))


def has_data(prometheus: Prometheus, text: str) -> bool:
    return any(not math.isnan(value) for _, value in prometheus.query(text))
