"""Which batches of a fenced log count: a pure function of the batches in the order of their offsets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kshare_core.errors import KafkaError
from kshare_upstream.fenced_log.claim import Claim, ControlKind, control_record
from kshare_wire.record_batches import BatchHeader, read_header

LENGTH_OF_OFFSET_AND_LENGTH = 12


class NotAFencedLog(Exception):
    """The log begins with neither a claim nor a mark, so something before it is missing, or it is another log."""


class CountedBatch(NamedTuple):
    """A batch of data that counts; its header's position is within `data`."""

    header: BatchHeader
    data: memoryview


def whole_batches(records: bytes | memoryview) -> Iterator[CountedBatch]:
    """The batches of a fetched piece of a log; the last one is left out where it is cut off."""
    view, position = memoryview(records), 0
    while len(view) - position > LENGTH_OF_OFFSET_AND_LENGTH:
        try:
            header = read_header(view, position)
        except KafkaError:
            length = int.from_bytes(view[position + 8 : position + 12])
            if position + LENGTH_OF_OFFSET_AND_LENGTH + length > len(view):
                return  # cut off by the size of the fetch
            raise
        yield CountedBatch(header._replace(position=0), view[position : position + header.size])
        position += header.size


class Fold:
    """The owner of a log and what counts, after the batches that it was given."""

    def __init__(self) -> None:
        self.claim: Claim | None = None
        """The last valid claim; None at the beginning of the log."""
        self.claimed_at = -1
        """The offset of that claim, or of the mark that stands for it."""
        self.has_resigned = False
        self.end_offset = 0
        """The offset after the last batch."""
        self.producer_id = -1
        """The producer id of the batches that count from here on."""
        self.void_batches = 0
        """Batches of data that do not count."""

    def take(self, batch: CountedBatch) -> bool:
        """Takes the next batch; whether it is data that counts. NotAFencedLog; UnknownControlRecord; KafkaError."""
        header = batch.header
        self.end_offset = header.base_offset + header.last_offset_delta + 1
        record = control_record(batch.data, header)
        if record is None:
            if self.claim is None:
                raise NotAFencedLog(f"the batch at offset {header.base_offset} is before every claim")
            counts = header.producer_id == self.producer_id
            self.void_batches += not counts
            return counts
        is_beginning = self.claim is None and record.kind is not ControlKind.RESIGN
        if is_beginning or (record.kind is ControlKind.CLAIM and self.would_win(record.claim)):
            self.claim = record.claim
            self.claimed_at = header.base_offset
            self.has_resigned = False
            self.producer_id = header.producer_id
        elif record.kind is ControlKind.RESIGN and header.producer_id == self.producer_id:
            self.has_resigned = True
        return False

    def would_win(self, claim: Claim) -> bool:
        """Whether a claim that comes next would be valid."""
        return self.claim is None or claim.rank > self.claim.rank
