"""compression.type of a topic: batches of other codecs are compressed anew before they are stored, as in Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from kshare_core.configs import process_configs
from kshare_core.errors import ErrorCode, KafkaError
from kshare_leader.log.topic_settings import topic_settings
from kshare_runtime.memory_store import MemoryDisk
from kshare_wire.compression import Codec
from kshare_wire.record_batches import COMPRESSION_NAMES, read_header
from kshare_wire.record_reading import open_records
from support.leader.log.large_batches import HeldAside
from support.leader.log.leader_logs import KEY, open_logs, topic
from support.wire.record_building import build_batch

TYPES = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
VALUES = [b"one", None, bytes(2_000)]


def stored(configs: Mapping[str, str], batch: bytes) -> bytes:
    """What a log with these configs keeps of a produced batch, which comes twice: the second one is a duplicate."""

    async def append() -> bytes:
        logs = open_logs(MemoryDisk().open_store("leader"), topic(configs=dict(configs)))
        for _ in range(2):
            assert (await logs.append(KEY, memoryview(batch))).base_offset == 0
        (found,) = logs.lookup(KEY).read(0, 1 << 20)
        return bytes(found.data)

    return asyncio.run(append())


@pytest.mark.parametrize("source", TYPES.values())
@pytest.mark.parametrize("name", TYPES)
def test_batches_are_stored_in_the_topics_codec(name: str, source: int) -> None:
    batch = build_batch(VALUES, compression=source, producer_id=7, producer_epoch=0, base_sequence=0)
    found = stored({"compression.type": name}, batch)
    assert read_header(found).compression == TYPES[name]
    assert [record.value for record in open_records(found)] == VALUES
    if source == TYPES[name]:
        assert found[21:] == batch[21:], "it was not touched"


def test_producer_keeps_batches_as_they_were_sent() -> None:
    batch = build_batch(VALUES, compression=2, producer_id=7, producer_epoch=0, base_sequence=0)
    assert stored({"compression.type": "producer"}, batch)[21:] == batch[21:]
    assert stored({}, batch)[21:] == batch[21:]


def test_append_times_are_set_as_well() -> None:
    batch = build_batch(VALUES, compression=2, producer_id=7, producer_epoch=0, base_sequence=0)
    found = read_header(stored({"compression.type": "lz4", "message.timestamp.type": "LogAppendTime"}, batch))
    assert found.is_log_append_time
    assert found.compression == TYPES["lz4"]


def test_levels_are_the_topics() -> None:
    broker, warnings = process_configs({"compression.zstd.level": "7", "compression.type": "zstd"})
    assert not warnings
    assert topic_settings({}, broker).codec == Codec(4, 7)
    assert topic_settings({"compression.zstd.level": "9"}, broker).codec == Codec(4, 9)
    assert topic_settings({"compression.type": "gzip"}, broker).codec == Codec(1, -1)
    assert topic_settings({"compression.type": "lz4"}, broker).codec == Codec(3, 9)
    assert topic_settings({"compression.type": "snappy"}, broker).codec == Codec(2)
    assert topic_settings({"compression.type": "uncompressed"}, broker).codec == Codec(0)
    assert topic_settings({"compression.type": "producer"}, broker).codec is None


def test_a_batch_that_becomes_too_large_is_refused() -> None:
    async def append() -> None:
        configs = {"compression.type": "uncompressed", "max.message.bytes": "10000"}
        logs = open_logs(MemoryDisk().open_store("leader"), topic(configs=configs))
        with pytest.raises(KafkaError) as caught:
            await logs.append(KEY, memoryview(build_batch([bytes(10_000)], compression=TYPES["gzip"])))
        assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
        assert "compression.type" in caught.value.message
        assert logs.lookup(KEY).read(0, 1 << 20) == []

    asyncio.run(append())


def test_what_takes_long_is_compressed_beside_the_event_loop() -> None:
    """A batch of a size that would be checked on the loop, and would be stored at once in its own codec."""
    batch = build_batch([bytes(200_000)])

    async def append() -> None:
        aside = HeldAside()
        logs = open_logs(MemoryDisk().open_store("leader"), topic(configs={"compression.type": "gzip"}), aside=aside)
        appended = logs.append(KEY, memoryview(batch))
        while not aside.begun:
            await asyncio.sleep(0)
        assert not appended.done()
        aside.begun[0].set()
        assert (await appended).base_offset == 0
        (found,) = logs.lookup(KEY).read(0, 1 << 20)
        assert COMPRESSION_NAMES[read_header(found.data).compression] == "gzip"

    asyncio.run(append())
