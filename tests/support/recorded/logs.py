"""The logs of a topic as a cluster stores them, with control records and the outcomes of transactions.

They are read by Fetch, since ordinary consumers show neither control records nor where a log ends.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from kshare_core.errors import ErrorCode
from kshare_wire.generated.api_keys import ApiKey
from support.clients.kafka_requests import KafkaRequests
from support.simulation.kafka_clients.protocol import ReadRecord, read_part

FETCH_VERSION = 12
"""The last one with topic names."""
READ_COMMITTED = 1
READ_WITHIN_S = 60.0
RETRY_S = 0.1
FETCH_BYTES = 1 << 20


class LogContents(NamedTuple):
    """One partition, from offset 0 up to `end_offset`."""

    records: list[ReadRecord]
    markers: list[int]
    """The offsets of control records."""
    end_offset: int


def read_logs(bootstrap: str, topic: str, partitions: int, *, is_ended: bool) -> dict[int, LogContents]:
    """By partition: all of it where the producers have ended, else up to the first open transaction.

    So the outcome of each transaction in it is final. AssertionError where that takes too long.
    """
    with KafkaRequests(bootstrap) as kafka:
        return {partition: _read(kafka, topic, partition, is_ended=is_ended) for partition in range(partitions)}


def _read(kafka: KafkaRequests, topic: str, partition: int, *, is_ended: bool) -> LogContents:
    records: list[ReadRecord] = []
    markers: list[int] = []
    next_offset, wanted = 0, -1
    deadline = time.monotonic() + READ_WITHIN_S
    while next_offset != wanted:
        assert time.monotonic() < deadline, f"{topic}-{partition} was not read past {next_offset} of {wanted}"
        found = _fetch(kafka, topic, partition, next_offset)
        if found.error_code != ErrorCode.NONE:
            time.sleep(RETRY_S)
            continue
        if is_ended or wanted == -1:
            wanted = int(found.high_watermark if is_ended else found.last_stable_offset)
        aborted = [(entry.producer_id, entry.first_offset) for entry in found.aborted_transactions or ()]
        part = read_part(bytes(found.records or b""), aborted)
        records.extend(record for record in part.records if next_offset <= record.offset < wanted)
        markers.extend(offset for offset in part.markers if next_offset <= offset < wanted)
        next_offset = min(wanted, max(next_offset, part.next_offset))
    return LogContents(records, markers, next_offset)


def _fetch(kafka: KafkaRequests, topic: str, partition: int, offset: int) -> Any:
    wanted = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": FETCH_BYTES}
    answer = kafka.ask(
        ApiKey.FETCH,
        FETCH_VERSION,
        max_wait=round(RETRY_S * 1000),
        min_bytes=1,
        isolation_level=READ_COMMITTED,
        topics=[{"topic": topic, "partitions": [wanted]}],
    )
    return answer.responses[0].partitions[0]
