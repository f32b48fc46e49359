"""A history topic that became shorter than the checkpoint: its volumes were lost, or it was restored or made again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kshare_pipeline.settings import PipelineProcessSettings
from kshare_pipeline.tables.checkpoint import lag_offsets
from kshare_pipeline.tables.history_stream import HistoryStream, history_records
from kshare_servicekit.process_settings import read_settings
from kshare_spark.log_source import LogDataSource
from support.clients.administration import create_topic, delete_topic
from support.clients.delivery import SETTINGS, new_topic, produce
from support.clusters.kshare_cluster import KshareCluster
from support.pipeline.delivery_histories import Pipeline, orders_history
from support.pipeline.spark import shared_spark


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with KshareCluster(tmp_path_factory.mktemp("kshare"), SETTINGS, single_process=True) as running:
        yield running.bootstrap


def test_it_is_read_from_its_start_and_events_are_added_once(bootstrap: str, tmp_path: Path) -> None:
    topic = new_topic(bootstrap)
    flags = ["--data-dir", str(tmp_path), "--bootstrap-servers", bootstrap, "--history-topic", topic]
    options = read_settings(PipelineProcessSettings, flags, program="kshare_pipeline").source_options()
    spark = shared_spark()
    spark.dataSource.register(LogDataSource)
    pipeline = Pipeline(spark, tmp_path)
    stream = HistoryStream(lambda: history_records(spark, options), pipeline.ingest, pipeline.layout)

    def lag() -> int:
        return lag_offsets(options, topic, pipeline.layout.checkpoint)

    *before, last = [value.decode() for value in orders_history()]
    produce(bootstrap, topic, before)
    assert lag() == len(before)
    stream.run_available()
    assert lag() == 0
    events = pipeline.ingest.counts.events
    delete_topic(bootstrap, topic)
    create_topic(bootstrap, topic, 1)
    restored = [before[0], last]
    produce(bootstrap, topic, restored)
    assert lag() == len(restored)
    stream.run_available()
    assert lag() == 0
    counts = pipeline.ingest.counts
    assert (counts.records, counts.quarantined) == (len(before) + len(restored), 0)
    assert counts.events == events + 1, "the one event of the last record"
