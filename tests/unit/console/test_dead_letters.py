"""Dead letters by group and reason: which are counted, and how much of a partition is read and held for that."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Sequence

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from kshare_console.cluster_client import ClusterClient
from kshare_console.views.dead_letters import (
    OPENED_LIMIT_BYTES,
    PARTITION_LIMIT_BYTES,
    REASONS_LIMIT,
    SCANNED_RECORDS,
    TEXT_LIMIT_BYTES,
    TOPIC_CONFIG,
    DeadLetters,
    Tally,
    shown,
)
from kshare_console.views.paging import Json
from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings
from kshare_upstream.partition_log import LATEST_TIMESTAMP
from kshare_wire.decompression import ZSTD
from kshare_wire.framing import parse_header
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.requests.fetch import FetchRequest
from kshare_wire.generated.requests.list_offsets import ListOffsetsRequest
from kshare_wire.generated.responses.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from kshare_wire.generated.responses.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from kshare_wire.generated.responses.list_groups import ListedGroup, ListGroupsResponse
from kshare_wire.generated.responses.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kshare_wire.generated.responses.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kshare_wire.messages import ARequest, decode_request, is_flexible
from kshare_wire.record_batches import patch, read_header
from kshare_wire.record_reading import OpenedRecord
from kshare_wire.record_writing import BatchWriter
from support.upstream.scripted_broker import NODE_ID, ScriptedBroker

pytestmark = pytest.mark.timeout(60)

TOPIC, REJECTED = "dlq", "Offset rejected by client."
MIB = 1024 * 1024
LETTER_HEADERS = [
    ("__dlq.errors.topic", b"orders"),
    ("__dlq.errors.group", b"billing"),
    ("__dlq.errors.message", REJECTED.encode()),
]


def batch_of(values: Sequence[bytes]) -> bytes:
    """Dead letters as a zstd batch with base offset 0."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=ZSTD,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for number, value in enumerate(values):
        builder.append(number, 1_000 + number, None, value, LETTER_HEADERS)
    return bytes(builder.build())


def batch_without_compression() -> bytes:
    writer = BatchWriter(1_000)
    assert writer.append(1_000, None, b"value", [*LETTER_HEADERS, ("odd-name", b"1")])
    return bytes(writer.build())


def letter(offset: int, time_ms: int, group: str | None, text: str) -> OpenedRecord:
    headers: list[tuple[str, bytes | None]] = [("__dlq.errors.group", b"of-the-record"), ("own", b"1")]
    if group is None:
        headers = []
    else:
        for name, word in (("topic", "orders"), ("partition", "1"), ("offset", str(offset + 100)), ("group", group)):
            headers.append((f"__dlq.errors.{name}", word.encode()))
        headers.append(("__dlq.errors.message", text.encode()))
    return OpenedRecord(offset, time_ms, None, None, headers)


class DeadLetterTopic:
    """What the broker of a cluster answers whose group billing has the topic `dlq`; `logs` are its partitions."""

    def __init__(self, broker: ScriptedBroker, logs: Sequence[Sequence[bytes]]) -> None:
        self._broker = broker
        self._logs: list[list[bytes]] = []
        for batches in logs:
            self._logs.append([])
            end = 0
            for batch in batches:
                self._logs[-1].append(patch(batch, end, 0))
                end += read_header(batch).record_count
        group = ListedGroup(group_id="billing", group_type="share")
        entry = DescribeConfigsResourceResult(name=TOPIC_CONFIG, value=TOPIC)
        configs = DescribeConfigsResult(resource_type=32, resource_name="billing", configs=[entry])
        broker.answers |= {
            ApiKey.METADATA: lambda version, frame: self._metadata(),
            ApiKey.LIST_GROUPS: lambda version, frame: ListGroupsResponse(groups=[group]),
            ApiKey.DESCRIBE_CONFIGS: lambda version, frame: DescribeConfigsResponse(results=[configs]),
            ApiKey.LIST_OFFSETS: self._list_offsets,
            ApiKey.FETCH: self._fetch,
        }

    async def read(self) -> Json:
        """The view of a user who connects to the broker."""
        cluster = Cluster([BrokerAddress("127.0.0.1", self._broker.port)], ClientSettings())
        try:
            return await DeadLetters(ClusterClient(cluster)).read()
        finally:
            await cluster.close()

    def _end(self, partition: int) -> int:
        last = read_header(self._logs[partition][-1])
        return last.base_offset + last.record_count

    def _metadata(self) -> MetadataResponse:
        found = self._broker.metadata()
        partitions = [
            MetadataResponsePartition(partition_index=each, leader_id=NODE_ID) for each in range(len(self._logs))
        ]
        found.topics = [MetadataResponseTopic(name=TOPIC, partitions=partitions)]
        return found

    def _list_offsets(self, version: int, frame: bytes) -> ListOffsetsResponse:
        (topic,) = body(ListOffsetsRequest, version, frame).topics
        found = [
            ListOffsetsPartitionResponse(
                partition_index=each.partition_index,
                offset=self._end(each.partition_index) if each.timestamp == LATEST_TIMESTAMP else 0,
            )
            for each in topic.partitions
        ]
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=TOPIC, partitions=found)])

    def _fetch(self, version: int, frame: bytes) -> FetchResponse:
        (topic,) = body(FetchRequest, version, frame).topics
        (wanted,) = topic.partitions
        headers = [(read_header(batch), batch) for batch in self._logs[wanted.partition]]
        rest = [batch for each, batch in headers if each.base_offset + each.record_count > wanted.fetch_offset]
        data = PartitionData(
            partition_index=wanted.partition, high_watermark=self._end(wanted.partition), records=[b"".join(rest)]
        )
        return FetchResponse(responses=[FetchableTopicResponse(topic=TOPIC, partitions=[data])])


def body(kind: type[ARequest], version: int, frame: bytes) -> ARequest:
    view = memoryview(frame)
    head = parse_header(view, flexible=is_flexible(kind.API_KEY, version))
    return decode_request(kind, version, view, head.body_offset)


def read(logs: Sequence[Sequence[bytes]]) -> tuple[Json, int]:
    """The view of the logs of a topic, and the largest number of bytes that was held for it."""

    async def whole() -> tuple[Json, int]:
        async with ScriptedBroker() as broker:
            topic = DeadLetterTopic(broker, logs)
            tracemalloc.start()
            try:
                return await topic.read(), tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

    return asyncio.run(whole())


def counts(found: Json) -> dict[str, int]:
    items = found["items"]
    assert isinstance(items, list)
    return {f"{each['group_id']} {each['reason']}": each["count"] for each in items}


def test_large_records_are_counted_without_being_held() -> None:
    batch = batch_of([b"0" * 100_000] * 100)
    found, peak_bytes = read([[batch] * 5, [batch] * 5, [batch] * 5])
    assert (counts(found), found["is_partial"]) == ({"billing rejected": 1_500}, False)
    assert peak_bytes < 64 * MIB


def test_only_so_much_of_a_partition_is_decompressed_and_the_answer_says_so() -> None:
    batch = batch_of([b"0" * 100_000] * 100)
    fitting = PARTITION_LIMIT_BYTES // len(b"0" * 10_000_000)
    found, peak_bytes = read([[batch] * (fitting + 6), [batch]])
    assert (counts(found), found["is_partial"]) == ({"billing rejected": 100 * fitting + 100}, True)
    assert peak_bytes < 64 * MIB


def test_a_batch_that_decompresses_too_far_is_left_out() -> None:
    bomb, small = batch_of([b"0" * OPENED_LIMIT_BYTES]), batch_of([b"value"] * 3)
    found, peak_bytes = read([[small, bomb, small]])
    assert (counts(found), found["is_partial"]) == ({"billing rejected": 6}, True)
    assert peak_bytes < 2 * OPENED_LIMIT_BYTES


def test_the_newest_records_are_counted() -> None:
    found, _ = read([[batch_of([b"value"] * 300)] * 8])
    assert (counts(found), found["is_partial"]) == ({"billing rejected": SCANNED_RECORDS}, True)


def test_the_limits_leave_out_the_oldest_records() -> None:
    batch = batch_of([b"0" * 100_000] * 100)
    found, _ = read([[batch] * 12])
    items = found["items"]
    assert isinstance(items, list)
    assert (items[0]["examples"][0]["offset"], items[0]["count"], found["is_partial"]) == (1199, 600, True)


def test_batches_that_cannot_be_read_hide_no_others() -> None:
    """Such as those of a producer whose header has a name that is not UTF-8."""
    letters = batch_without_compression()
    unreadable = batch_without_compression().replace(b"odd-name", b"odd-nam\xe9")
    found, _ = read([[unreadable] * 20 + [letters] + [unreadable] * 20])
    assert (counts(found), found["is_partial"]) == ({"billing rejected": 1}, True)


def test_an_answer_has_a_limit_of_reasons_and_of_their_length() -> None:
    tally = Tally()
    for number in range(REASONS_LIMIT + 1):
        tally.add(TOPIC, 0, letter(number, number, "billing", f"{number:05}" + "x" * 10_000))
        assert tally.is_partial is (number == REASONS_LIMIT)
    assert len(tally.reasons) == REASONS_LIMIT
    assert {len(each.reason) for each in tally.reasons.values()} == {TEXT_LIMIT_BYTES}


def test_dead_letters_are_grouped_by_group_and_reason_with_the_newest_as_examples() -> None:
    tally = Tally()
    letters = [letter(number, 1_000 + number, "billing", REJECTED) for number in (8, 0, 1, 2, 3, 4, 5, 6, 7)]
    for each in (*letters, letter(9, 2_000, "other", "odd"), letter(10, 3_000, None, "")):
        tally.add(TOPIC, 0, each)
    assert sorted(tally.reasons) == [("billing", TOPIC, "rejected"), ("other", TOPIC, "odd")]
    found = shown(tally.reasons["billing", TOPIC, "rejected"])
    assert (found["count"], found["first_ms"], found["last_ms"]) == (9, 1_000, 1_008)
    examples = found["examples"]
    assert isinstance(examples, list)
    assert [(each["offset"], each["source_offset"]) for each in examples] == [
        (8, 108),
        (7, 107),
        (6, 106),
        (5, 105),
        (4, 104),
    ]
