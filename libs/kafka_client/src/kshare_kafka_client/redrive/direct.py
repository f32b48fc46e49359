"""The engine without Spark: one partition after another, in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import groupby

from kshare_kafka_client.range_reader import RangeReader
from kshare_kafka_client.redrive.candidates import matches, matches_key
from kshare_kafka_client.redrive.ledger import create_ledger
from kshare_kafka_client.redrive.mover import PartitionMover
from kshare_kafka_client.redrive.originals import Originals
from kshare_kafka_client.redrive.pace import Pace
from kshare_kafka_client.redrive.request import Account, BadRequest, RedriveRequest
from kshare_kafka_client.redrive.sources import Span, candidates_in, source_ranges, spans_of
from kshare_kafka_client.topics import topic_ids


def redrive_directly(
    request: RedriveRequest,
    *,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Account:
    """Moves the requested records, or counts them in a dry run. BadRequest, RedriveFailed, KafkaUnavailable."""
    if request.where is not None:
        raise BadRequest("an SQL expression needs the engine spark")
    account = Account()
    pace = Pace(request.rate, now_s, sleep)
    with RangeReader(request.properties, timeout_s=request.timeout_s, must_be_whole=False) as reader:
        ranges = source_ranges(request, reader, account)
        ids = topic_ids(request.properties, list(dict.fromkeys(one.topic for one in ranges)))
        if ranges and not request.dry_run:
            create_ledger(request.properties)
        with Originals(request.properties, timeout_s=request.timeout_s) as originals:
            for place, of_place in groupby(spans_of(ranges), key=lambda span: span.place):
                with PartitionMover(place, ids[place.topic], request, account, pace) as mover:
                    for span in of_place:
                        _move(span, request, reader, originals, mover)
    return account


def _move(
    span: Span, request: RedriveRequest, reader: RangeReader, originals: Originals, mover: PartitionMover
) -> None:
    for candidates in candidates_in(span, reader):
        selected = [candidate for candidate in candidates if matches(candidate, request.selection)]
        completed = originals.completed(mover.unmoved(selected))
        mover.move([candidate for candidate in completed if matches_key(candidate, request.selection)])
