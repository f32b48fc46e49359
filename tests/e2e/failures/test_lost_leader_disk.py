"""A leader's folder is removed, or a start offset lies beyond the log's end: real processes and real clients.

The worked cases of a state that knows records which the log does not have: every record that is in the log comes, or
was accepted as this record.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kshare_core.errors import ErrorCode
from kshare_wire.generated.api_keys import ApiKey
from support.clients.delivery import RELEASE, Reader, new_topic, produce, set_group, values_of, wait_for
from support.clients.kafka_requests import KafkaRequests
from support.clusters.kshare_cluster import KshareCluster

GROUP = "workers"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KshareCluster]:
    with KshareCluster(tmp_path) as running:
        set_group(running.bootstrap, GROUP, auto_offset_reset="earliest")
        yield running


def lose_the_leaders_disk(cluster: KshareCluster) -> None:
    assert cluster.stop() == 0
    folders = [folder for folder in (cluster.folder / "data").iterdir() if folder.name.startswith("leader")]
    assert folders, "the leader has no folder"
    for folder in folders:
        shutil.rmtree(folder)
    cluster.start()


def verified(cluster: KshareCluster) -> tuple[int, str]:
    """The exit code of `kshare state verify` on the serving cluster, and what it prints."""
    command = [str(Path(sys.executable).parent / "kshare"), "state", "verify"]
    command += ["--data-dir", str(cluster.folder / "data"), "--bootstrap", cluster.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def numbered(name: str, count: int) -> list[str]:
    return [f"{name}-{number}" for number in range(count)]


@pytest.mark.timeout(120)
def test_after_a_lost_disk_all_new_records_come_and_what_was_released_comes_again(cluster: KshareCluster) -> None:
    topic = new_topic(cluster.bootstrap)
    produce(cluster.bootstrap, topic, numbered("old", 200))
    with Reader(cluster.bootstrap, GROUP, topic) as reader:
        assert len(reader.accept(200)) == 200
    lose_the_leaders_disk(cluster)
    code, text = verified(cluster)
    assert code == 1, text
    assert f"group {GROUP}, {topic}-0: the state has offsets up to 199" in text
    assert "the log ends at 0" in text
    fifty, more = numbered("new", 50), numbered("more", 400)
    produce(cluster.bootstrap, topic, fifty)
    with Reader(cluster.bootstrap, GROUP, topic) as reader:
        assert sorted(values_of(reader.accept(50))) == sorted(fifty)
        produce(cluster.bootstrap, topic, more)
        came = reader.accept(370)
        left = sorted({*more} - {*values_of(came)})
        if left:
            reader.take()
            reader.settle(RELEASE)
        cluster.kill_role("leader")
        rest = reader.accept(400 - len(came))
    assert sorted([*values_of(came), *values_of(rest)]) == sorted(more)
    assert "was cut at offset 0" in cluster.log_text()
    cluster.kill_role("leader")  # it is started again, and asked until it answers
    code, text = verified(cluster)
    assert code == 0, text
    assert "was truncated at offset 0 in leader epoch" in text
    assert "no state has offsets beyond the end of its log" in text


@pytest.mark.timeout(120)
def test_a_state_epoch_that_leaves_no_room_is_refused_and_the_group_works(cluster: KshareCluster) -> None:
    topic = new_topic(cluster.bootstrap)
    produce(cluster.bootstrap, topic, numbered("early", 10))
    with KafkaRequests(cluster.bootstrap) as requests:
        metadata = requests.ask(ApiKey.METADATA, 12, topics=[{"topic_id": bytes(16), "name": topic}])
        partition = {"partition": 0, "state_epoch": 2**31 - 1, "start_offset": 0}
        answer = requests.ask(
            ApiKey.INITIALIZE_SHARE_GROUP_STATE,
            0,
            group_id=GROUP,
            topics=[{"topic_id": metadata.topics[0].topic_id, "partitions": [partition]}],
        )
    assert int(answer.results[0].partitions[0].error_code) == ErrorCode.INVALID_REQUEST
    with Reader(cluster.bootstrap, GROUP, topic) as reader:
        assert len(reader.accept(10)) == 10


@pytest.mark.timeout(120)
def test_a_start_offset_beyond_the_end_is_brought_to_the_end(cluster: KshareCluster) -> None:
    topic = new_topic(cluster.bootstrap)
    produce(cluster.bootstrap, topic, numbered("early", 10))
    with KafkaRequests(cluster.bootstrap) as requests:
        altered = requests.ask(
            ApiKey.ALTER_SHARE_GROUP_OFFSETS,
            0,
            group_id=GROUP,
            topics=[{"topic_name": topic, "partitions": [{"partition_index": 0, "start_offset": 100}]}],
        )
        assert int(altered.responses[0].partitions[0].error_code) == 0
        with Reader(cluster.bootstrap, GROUP, topic) as reader:
            assert reader.poll(2.0) == []
            wait_for(lambda: "was cut at offset 10" in cluster.log_text(), "the start offset is the log's end")
            new = numbered("new", 20)
            produce(cluster.bootstrap, topic, new)
            first = reader.take()
            reader.settle(RELEASE)
            assert {*values_of(first)} <= {*new}
            cluster.kill_role("leader")
            assert sorted(values_of(reader.accept(20))) == sorted(new)
        described = requests.ask(
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
            1,
            groups=[{"group_id": GROUP, "topics": [{"topic_name": topic, "partitions": [0]}]}],
        )
    (partition,) = described.groups[0].topics[0].partitions
    assert (int(partition.start_offset), int(partition.lag)) == (30, 0)
