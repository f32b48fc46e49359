"""What Kafka's messages cost to read and to write, in microseconds: medians of nine samples.

Requests are read as the gateway reads them; responses are made, written, and searched for error codes as it does that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from kshare_wire.error_codes import error_codes
from kshare_wire.generated.requests import (
    consumer_group_heartbeat,
    fetch,
    metadata,
    produce,
    share_acknowledge,
    share_fetch,
    share_group_heartbeat,
)
from kshare_wire.generated.responses import fetch as fetched
from kshare_wire.generated.responses import metadata as described
from kshare_wire.generated.responses import produce as produced
from kshare_wire.generated.responses import share_acknowledge as acknowledged
from kshare_wire.generated.responses import share_fetch as acquired
from kshare_wire.generated.responses import share_group_heartbeat as beaten
from kshare_wire.messages import Request, Response, decode_request, encode_request, encode_response, is_flexible

TOPIC_ID = bytes(range(16))
MEMBER = "m" * 36
RECORDS = memoryview(b"x" * 1_000)
CLIENT_ID = "me"
SAMPLES = 9
SAMPLE_S = 0.05


def _produce(partitions: int) -> Request[produced.ProduceResponse]:
    data = [produce.PartitionProduceData(index=index, records=RECORDS) for index in range(partitions)]
    topics = [produce.TopicProduceData(topic_id=TOPIC_ID, partition_data=data)]
    return produce.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics)


def _fetch(partitions: int) -> Request[fetched.FetchResponse]:
    wanted = [fetch.FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in range(partitions)]
    return fetch.FetchRequest(max_wait_ms=500, topics=[fetch.FetchTopic(topic_id=TOPIC_ID, partitions=wanted)])


def _share_fetch(acknowledgements: int) -> Request[acquired.ShareFetchResponse]:
    batches = [
        share_fetch.AcknowledgementBatch(first_offset=index, last_offset=index, acknowledge_types=(1,))
        for index in range(acknowledgements)
    ]
    partition = share_fetch.FetchPartition(partition_index=0, acknowledgement_batches=batches)
    topics = [share_fetch.FetchTopic(topic_id=TOPIC_ID, partitions=[partition])] if batches else []
    return share_fetch.ShareFetchRequest(group_id="orders", member_id=MEMBER, max_wait_ms=500, topics=topics)


def _share_acknowledge() -> Request[acknowledged.ShareAcknowledgeResponse]:
    batch = share_acknowledge.AcknowledgementBatch(first_offset=5, last_offset=9, acknowledge_types=(1,))
    partition = share_acknowledge.AcknowledgePartition(partition_index=0, acknowledgement_batches=[batch])
    topic = share_acknowledge.AcknowledgeTopic(topic_id=TOPIC_ID, partitions=[partition])
    return share_acknowledge.ShareAcknowledgeRequest(group_id="orders", member_id=MEMBER, topics=[topic])


REQUESTS: dict[str, tuple[Request[Response], int]] = {
    "Produce, 1 partition": (_produce(1), 13),
    "Produce, 50 partitions": (_produce(50), 13),
    "Fetch, 1 partition": (_fetch(1), 18),
    "Fetch, 200 partitions": (_fetch(200), 18),
    "ShareFetch, nothing new": (_share_fetch(0), 2),
    "ShareFetch, 1 acknowledgement": (_share_fetch(1), 2),
    "ShareAcknowledge": (_share_acknowledge(), 2),
    "Metadata": (metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name="orders")]), 12),
    "ShareGroupHeartbeat": (
        share_group_heartbeat.ShareGroupHeartbeatRequest(group_id="orders", member_id=MEMBER, member_epoch=4),
        1,
    ),
    "ConsumerGroupHeartbeat": (
        consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            group_id="orders", member_id=MEMBER, member_epoch=4, subscribed_topic_names=["a", "b"]
        ),
        1,
    ),
}


def _produced(partitions: int) -> Response:
    results = [produced.PartitionProduceResponse(index=index, base_offset=5) for index in range(partitions)]
    return produced.ProduceResponse(
        responses=[produced.TopicProduceResponse(topic_id=TOPIC_ID, partition_responses=results)]
    )


def _fetched(partitions: int) -> Response:
    data = [
        fetched.PartitionData(partition_index=index, high_watermark=5, last_stable_offset=5, records=[RECORDS])
        for index in range(partitions)
    ]
    return fetched.FetchResponse(responses=[fetched.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=data)])


def _acquired() -> Response:
    runs = [acquired.AcquiredRecords(first_offset=1, last_offset=5, delivery_count=1)]
    data = acquired.PartitionData(partition_index=0, records=[RECORDS], acquired_records=runs)
    topics = [acquired.ShareFetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])]
    return acquired.ShareFetchResponse(acquisition_lock_timeout_ms=30_000, responses=topics)


def _described(partitions: int) -> Response:
    found = [
        described.MetadataResponsePartition(partition_index=index, leader_id=1, replica_nodes=(1,), isr_nodes=(1,))
        for index in range(partitions)
    ]
    topics = [described.MetadataResponseTopic(name="orders", topic_id=TOPIC_ID, partitions=found)]
    return described.MetadataResponse(brokers=[described.MetadataResponseBroker(node_id=1)], topics=topics)


def _acknowledged() -> Response:
    topics = [acknowledged.ShareAcknowledgeTopicResponse(topic_id=TOPIC_ID, partitions=[acknowledged.PartitionData()])]
    return acknowledged.ShareAcknowledgeResponse(responses=topics)


def _beaten() -> Response:
    return beaten.ShareGroupHeartbeatResponse(member_id=MEMBER, member_epoch=4, heartbeat_interval_ms=5_000)


RESPONSES: dict[str, tuple[Callable[[], Response], int]] = {
    "Produce, 1 partition": (lambda: _produced(1), 13),
    "Produce, 50 partitions": (lambda: _produced(50), 13),
    "Fetch, 1 partition": (lambda: _fetched(1), 18),
    "Fetch, 200 partitions": (lambda: _fetched(200), 18),
    "ShareFetch, 1 partition": (_acquired, 2),
    "ShareAcknowledge": (_acknowledged, 2),
    "Metadata, 100 partitions": (lambda: _described(100), 12),
    "ShareGroupHeartbeat": (_beaten, 1),
}


def microseconds(work: Callable[[], object]) -> float:
    work()
    rounds = 1
    while _took(work, rounds) < SAMPLE_S:
        rounds *= 2
    return statistics.median(_took(work, rounds) / rounds * 1e6 for _ in range(SAMPLES))


def _took(work: Callable[[], object], rounds: int) -> float:
    began = time.perf_counter()
    for _ in range(rounds):
        work()
    return time.perf_counter() - began


def _read(message: Request[Response], version: int) -> Callable[[], object]:
    frame = memoryview(b"".join(encode_request(message, version, 1, CLIENT_ID)))[4:]
    offset = 4 + 4 + 2 + len(CLIENT_ID) + is_flexible(message.API_KEY, version)
    return lambda: decode_request(type(message), version, frame, offset)


def _write(make: Callable[[], Response], version: int) -> Callable[[], object]:
    def write() -> None:
        response = make()
        encode_response(response, version, 1)
        error_codes(response)

    return write


def main() -> None:
    print("| message | µs |\n|---|---|")
    for name, (message, version) in REQUESTS.items():
        print(f"| read {name} | {microseconds(_read(message, version)):.2f} |", flush=True)
    for name, (make, version) in RESPONSES.items():
        print(f"| make and write {name} | {microseconds(_write(make, version)):.2f} |", flush=True)


if __name__ == "__main__":
    main()
