"""Dashboards: every query finds data in a live system under load, in which no alert rings."""

from __future__ import annotations

import asyncio
import json
import math
import re
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from kshare_pipeline.metrics import PipelineMetrics, ReadCounts, ServiceCounts
from kshare_servicekit.metrics_server import Metrics
from support.clients.administration import alter_group
from support.clients.delivery import ACCEPT, REJECT, RELEASE, Reader, new_topic, produce, wait_for
from support.clusters.kshare_cluster import KshareCluster
from support.environment.free_ports import free_port
from support.environment.prometheus import Prometheus
from support.house.scripts import ROOT, script
from support.servicekit.trace_collector import TraceCollector

ALERTS = ROOT / "deploy/observability/alerts.yaml"
DASHBOARDS = ROOT / "helm/kshare/files/dashboards"
PATIENCE_S = 90.0
CONFIGS = {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": "dlq.workers"}
RELEASE_LABELS = {"namespace": "n", "release": "queues"}
ONLY_AFTER_A_FAILURE = "rpc: Failed calls by kind"
"""A kind of failed calls has no series before its first one: drawn when a leader was killed."""
MAY_BE_EMPTY = {ONLY_AFTER_A_FAILURE, "rpc: Failures at the server"}
KEDA_QUERY = 'sum(kshare_leader_share_lag_records{namespace="n",release="queues",group="sleepers"})'
"""What the chart's ScaledObject of workers asks."""

writer = script("deploy/observability", "dashboards")


def test_the_dashboards_are_what_their_tables_say() -> None:
    assert {path.stem for path in DASHBOARDS.iterdir()} == set(writer.DASHBOARDS)
    for name, dashboard in writer.DASHBOARDS.items():
        text = (DASHBOARDS / f"{name}.json").read_text()
        assert text == writer.rendered(name, dashboard), "run python deploy/observability/dashboards.py"


def test_a_panel_says_what_it_shows_and_in_which_unit() -> None:
    for name, document in documents():
        assert {"source", "namespace", "release"} <= {each["name"] for each in document["templating"]["list"]}
        panels = document["panels"]
        assert {"stat", "timeseries"} == {panel["type"] for panel in panels}, name
        assert len({panel["title"] for panel in panels}) == len(panels), name
        places = [(place["x"], place["y"]) for place in (panel["gridPos"] for panel in panels)]
        assert len(set(places)) == len(places)
        for panel in panels:
            assert panel["description"].endswith(".") and panel["fieldConfig"]["defaults"]["unit"], panel["title"]


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(DASHBOARDS.iterdir()):
        yield path.stem, json.loads(path.read_text())


class PanelQuery(NamedTuple):
    """`place` is the dashboard and the panel; the text still has Grafana's variables."""

    place: str
    text: str
    has_exemplars: bool
    variables: tuple[dict[str, Any], ...]


def queries() -> list[PanelQuery]:
    return [
        PanelQuery(
            f"{name}: {panel['title']}",
            target["expr"],
            target.get("exemplar", False),
            tuple(each for each in document["templating"]["list"] if each["type"] == "query"),
        )
        for name, document in documents()
        for panel in document["panels"]
        for target in panel["targets"]
    ]


Values = dict[str, list[str]]
"""What Prometheus answered for the values of a variable, by its query: dashboards share most."""


def resolved(prometheus: Prometheus, query: PanelQuery, known: Values) -> str:
    """The text with every variable filled in as Grafana does with all of its values chosen; "" while one has none."""
    values = {"__rate_interval": "30s"}
    for variable in query.variables:
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
        assert found is not None, variable
        text = filled(variable["query"], values)
        if text not in known:
            samples = prometheus.query(filled(found[1], values))
            known[text] = sorted({labels.get(found[2], "") for labels, _ in samples})
        chosen = known[text]
        if not all(chosen) or not chosen:
            return ""
        values[variable["name"]] = f"({'|'.join(map(re.escape, chosen))})"
    return filled(query.text, values)


def filled(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda name: values[name[1]].replace("\\", "\\\\"), text)


@contextmanager
def pipeline_target() -> Iterator[str]:
    """The metrics of a pipeline, without Spark: what it would count, served by its own process' server."""
    now_ms = int(time.time() * 1000)
    service = ServiceCounts(succeeded=3, last_success_ms=now_ms, mart_days=1, marts_last_success_ms=now_ms)
    metrics = Metrics()
    metrics.add_node("pipeline", 1, PipelineMetrics(service, ReadCounts), list)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        served: Future[str] = asyncio.run_coroutine_threadsafe(metrics.serve("127.0.0.1:0"), loop)
        yield served.result(30)
    finally:
        asyncio.run_coroutine_threadsafe(metrics.stop(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


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
def test_every_panel_draws_something_in_a_system_under_load(tmp_path: Path) -> None:
    port = free_port()  # of the first role's metrics; the next three are the others'
    targets = [f"127.0.0.1:{port + number}" for number in range(4)]
    options = ["--metrics-listen", targets[0]]
    with (
        TraceCollector() as collector,
        pipeline_target() as pipeline,
        # Scrapes only some seconds after its start, so it starts first
        Prometheus(tmp_path / "prometheus", [*targets, pipeline], ALERTS, RELEASE_LABELS) as prometheus,
        KshareCluster(
            tmp_path / "cluster",
            options=options,
            variables={
                "KSHARE_TRACE_ENDPOINT": collector.endpoint,
                "KSHARE_TRACE_RATIO": "0.5",
                "OTEL_BSP_SCHEDULE_DELAY": "300",
            },
        ) as cluster,
    ):
        wait_for(lambda: value_of(prometheus, "sum(up)") == 5, "every process was scraped before something happens")
        with Work(cluster.bootstrap):
            missing = [query for query in queries() if query.place not in MAY_BE_EMPTY]
            deadline = time.monotonic() + PATIENCE_S
            while missing := without_data(prometheus, missing):
                assert time.monotonic() < deadline, [query.place for query in missing]
                time.sleep(1)
            without = [query for query in queries() if query.has_exemplars]
            assert without
            while without := [query for query in without if not has_exemplars(prometheus, collector, query)]:
                assert time.monotonic() < deadline, [query.place for query in without]
                time.sleep(1)
            accepted = "sum(kshare_leader_share_acknowledged_records_total{group='workers',type='accept'})"
            wait_for(lambda: value_of(prometheus, accepted) > 0, "acceptances are counted")
            firing = {labels["alertname"] for labels, _ in prometheus.query("ALERTS{alertstate='firing'}")}
            assert firing <= {"KshareDeadLettersGrow"}, "a healthy system is quiet"
        check_that_sleepers_wake_up(cluster, prometheus)
        check_that_failed_calls_are_drawn(cluster, prometheus)


def check_that_sleepers_wake_up(cluster: KshareCluster, prometheus: Prometheus) -> None:
    """The lag of a group without members is there after restarts of leader and gateway: KEDA starts workers by it."""
    new_topic(cluster.bootstrap, name="nights")
    alter_group(cluster.bootstrap, "sleepers", {"share.auto.offset.reset": "earliest"})
    produce(cluster.bootstrap, "nights", ["a", "b", "c"])
    with Reader(cluster.bootstrap, "sleepers", "nights") as reader:
        first = reader.take()
        reader.settle(ACCEPT, first[:1])
    # Of the kernel's clock, which is not in step with time.time(): only start times compare with start times
    started = max(value for _, value in prometheus.query("process_start_time_seconds"))
    for role in ("leader", "gateway"):
        cluster.wait_until_gone(cluster.kill_role(role))
    of_the_new_leader = f"and on (instance) (process_start_time_seconds > {started})"
    lag = KEDA_QUERY.replace("})", f"}} {of_the_new_leader})")
    wait_for(lambda: value_of(prometheus, lag) == 2, "the lag is there after the restarts, without a member")
    wait_for(lambda: value_of(prometheus, KEDA_QUERY) == 2, "and is the same as KEDA asks for it")


def check_that_failed_calls_are_drawn(cluster: KshareCluster, prometheus: Prometheus) -> None:
    """The gateway's call for a consumer that waits at the end of a log fails when the leader is killed."""
    (failed_calls,) = [query for query in queries() if query.place == ONLY_AFTER_A_FAILURE]
    topic = new_topic(cluster.bootstrap)
    produce(cluster.bootstrap, topic, ["read before the leader is killed"])
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": topic})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        wait_for(lambda: has_record(consumer), "the consumer fetches, which it goes on doing by itself")
        cluster.wait_until_gone(cluster.kill_role("leader"))
        wait_for(lambda: not without_data(prometheus, [failed_calls]), "calls to the killed leader failed")
    finally:
        consumer.close()


def has_record(consumer: Consumer) -> bool:
    message = consumer.poll(0.1)
    return message is not None and message.error() is None


def value_of(prometheus: Prometheus, text: str) -> float:
    """Of a query with one value; 0 while it has none, as after a scrape that took too long."""
    return sum(value for _, value in prometheus.query(text))


def has_exemplars(prometheus: Prometheus, collector: TraceCollector, query: PanelQuery) -> bool:
    """Whether points of a panel lead to traces that were recorded."""
    recorded = {span.trace_id for span in collector.spans()}
    return any(labels["trace_id"] in recorded for labels in prometheus.exemplars(resolved(prometheus, query, {})))


def without_data(prometheus: Prometheus, queries: Sequence[PanelQuery]) -> list[PanelQuery]:
    known: Values = {}
    return [query for query in queries if not has_data(prometheus, resolved(prometheus, query, known))]


def has_data(prometheus: Prometheus, text: str) -> bool:
    return bool(text) and any(not math.isnan(value) for _, value in prometheus.query(text))
