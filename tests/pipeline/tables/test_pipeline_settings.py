"""What the service is told, its folder's lock, and how far the checkpoint is; all without Spark."""

from __future__ import annotations

import fcntl
from datetime import date
from pathlib import Path

import pytest

from kshare_kafka_client.topics import Partition
from kshare_pipeline.settings import PipelineProcessSettings
from kshare_pipeline.tables.checkpoint import committed_offsets
from kshare_pipeline.tables.layout import Layout, TouchedDays
from kshare_pipeline.worker import FolderInUse, PipelineWorker
from kshare_servicekit.flags import SettingsError
from kshare_servicekit.process_settings import read_settings

DAY, NEXT_DAY = date(2026, 11, 20), date(2026, 11, 21)


def settings(tmp_path: Path, *flags: str) -> PipelineProcessSettings:
    given = ["--data-dir", str(tmp_path / "data"), "--bootstrap-servers", "a:9092,b:9092", *flags]
    return read_settings(PipelineProcessSettings, given, program="kshare_pipeline")


def test_the_config_file_has_properties_of_kafka_clients_and_of_spark(tmp_path: Path) -> None:
    config = tmp_path / "pipeline.properties"
    config.write_text("kafka.security.protocol=SSL\nspark.driver.memory=2g\n")
    found = settings(tmp_path, "--config", str(config), "--max-offsets-per-trigger", "500")
    assert found.spark_options() == {"spark.driver.memory": "2g"}
    assert found.source_options() == {
        "kafka.security.protocol": "SSL",
        "kafka.bootstrap.servers": "a:9092,b:9092",
        "subscribe": "__share_delivery_history",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "500",
        "failOnDataLoss": "false",
        "offsetReset": "earliest",
    }
    assert found.properties() == {}, "no configs of a role"
    config.write_text("num.partitions=3\n")
    with pytest.raises(SettingsError, match=r"num\.partitions is no config of the pipeline"):
        settings(tmp_path, "--config", str(config)).source_options()


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--trigger-interval-ms", "10"], "greater than or equal to 1000"),
        (["--retention-days", "0"], "greater than or equal to 1"),
        (["--bootstrap-servers", "nowhere"], "must be host:port"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, flags: list[str], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        settings(tmp_path, *flags)


def test_a_folder_has_one_process(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with Layout(folder).lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(FolderInUse, match="another process works on"):
            PipelineWorker(settings(tmp_path)).open()


def test_the_checkpoint_says_what_is_in_the_tables(tmp_path: Path) -> None:
    """A batch whose offsets are written, and that is not committed, is not."""
    assert committed_offsets(tmp_path) == {}
    for folder in ("commits", "offsets"):
        (tmp_path / folder).mkdir()
    for batch in (9, 10, 11):
        offset = f'{{"h": {{"0": {{"from": 0, "until": {batch}}}, "1": {{"from": 0, "until": 7}}}}}}'
        (tmp_path / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{offset}')
    for batch in (9, 10):
        (tmp_path / "commits" / str(batch)).write_text("v1\n{}")
    (tmp_path / "commits" / ".10.crc").write_text("")
    assert committed_offsets(tmp_path) == {Partition("h", 0): 10, Partition("h", 1): 7}


def test_days_that_are_touched_meanwhile_stay_touched(tmp_path: Path) -> None:
    touched = TouchedDays(tmp_path)
    touched.add([DAY, NEXT_DAY], 1)
    touched.add([DAY], 2)
    marks = touched.marks()
    assert [(day, len(paths)) for day, paths in marks.items()] == [(DAY, 2), (NEXT_DAY, 1)]
    touched.add([DAY], 3)
    for paths in marks.values():
        TouchedDays.remove(paths)
    assert list(TouchedDays(tmp_path).marks()) == [DAY]
