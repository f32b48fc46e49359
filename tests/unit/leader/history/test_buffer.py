"""Numbers, segments and limits of the buffer: a dropped event is counted and leaves a gap, and nothing else does."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from kshare_core.identifiers import SharePartitionKey
from kshare_leader.history.buffer import EventStream, HistoryBuffer, Segment
from kshare_leader.history.limits import EVENT_OVERHEAD_BYTES, FLUSH_BYTES, RECORD_LIMIT_BYTES
from kshare_leader.history.numbers import Number, Numbers
from kshare_leader.metrics import HistoryCounts

TOPIC = bytes(16)


def stream_of(buffer: HistoryBuffer, number: Number, key: bytes = b"k") -> EventStream:
    return EventStream(buffer, number, key, '{"sequence":', ',"events":[')


def contents(segments: list[Segment]) -> list[tuple[int, list[int]]]:
    found = [json.loads(segment.value()) for segment in segments]
    return [(value["sequence"], value["events"]) for value in found]


def test_events_of_one_stream_are_one_segment_until_it_is_taken() -> None:
    wakes: list[bool] = []
    buffer = HistoryBuffer(limit_bytes=10_000, counts=HistoryCounts(), wake=wakes.append)
    one, other = stream_of(buffer, Number(0)), stream_of(buffer, Number(7), b"other")
    for text in ("10", "11"):
        one.add(text)
        other.add(text)
    segments = buffer.take()
    assert contents(segments) == [(0, [10, 11]), (7, [10, 11])]
    assert [segment.key for segment in segments] == [b"k", b"other"]
    one.add("12")
    assert contents(segments)[0] == (0, [10, 11]), "what was taken stays as it is"
    assert contents(buffer.take()) == [(2, [12])]
    assert wakes == [False] * 5


def test_a_large_segment_is_followed_by_another() -> None:
    buffer = HistoryBuffer(limit_bytes=10 * RECORD_LIMIT_BYTES, counts=HistoryCounts(), wake=lambda at_once: None)
    stream = stream_of(buffer, Number(0))
    large = json.dumps("x" * RECORD_LIMIT_BYTES)
    for text in ("1", large, "2", "3"):
        stream.add(text)
    assert [sequence for sequence, _ in contents(buffer.take())] == [0, 2]


def test_much_at_once_is_to_go_at_once() -> None:
    wakes: list[bool] = []
    buffer = HistoryBuffer(limit_bytes=10 * FLUSH_BYTES, counts=HistoryCounts(), wake=wakes.append)
    stream = stream_of(buffer, Number(0))
    stream.add(json.dumps("x" * FLUSH_BYTES))
    buffer.take()
    stream.add("1")
    assert wakes == [True, False]


def test_what_finds_no_room_is_counted_and_its_number_is_missing() -> None:
    counts = HistoryCounts()
    size = EVENT_OVERHEAD_BYTES + 1
    buffer = HistoryBuffer(limit_bytes=2 * size, counts=counts, wake=lambda at_once: None)
    stream = stream_of(buffer, Number(0))
    for text in "123":
        stream.add(text)
    assert (counts.events, counts.dropped, counts.buffer_bytes) == (2, 1, 2 * size)
    (taken,) = buffer.take()
    stream.add("4")
    assert counts.dropped == 2, "what was taken is still there until it is stored"
    buffer.release(taken.size_bytes)
    stream.add("5")
    assert contents(buffer.take()) == [(4, [5])]
    assert (counts.events, counts.dropped) == (3, 2)


@given(st.lists(st.sampled_from(["add", "add large", "take", "release"]), max_size=60), st.integers(0, 900))
def test_numbers_and_sizes_against_a_plain_model(steps: list[str], limit_bytes: int) -> None:
    counts = HistoryCounts()
    buffer = HistoryBuffer(limit_bytes=limit_bytes, counts=counts, wake=lambda at_once: None)
    stream = stream_of(buffer, Number(0))
    told: list[int] = []
    kept: list[int] = []
    held = waiting = 0
    number = 0
    for step in steps:
        if step.startswith("add"):
            text = str(number).rjust(200 if "large" in step else 5)
            size = len(text) + EVENT_OVERHEAD_BYTES
            stream.add(text)
            if held + waiting + size <= limit_bytes:
                kept.append(number)
                waiting += size
            number += 1
        elif step == "take":
            segments = buffer.take()
            for sequence, events in contents(segments):
                assert events == list(range(sequence, sequence + len(events))), "the event's number is its place"
                told.extend(events)
            held, waiting = held + waiting, 0
        elif held:
            buffer.release(held)
            held = 0
        assert buffer.size_bytes == counts.buffer_bytes == held + waiting <= limit_bytes
    told.extend(event for _, events in contents(buffer.take()) for event in events)
    assert told == kept
    assert (counts.events, counts.dropped) == (len(kept), number - len(kept))


def key(partition: int) -> SharePartitionKey:
    return SharePartitionKey("g", TOPIC, partition)


def test_numbers_go_on_after_a_share_partition_left_memory() -> None:
    numbers = Numbers(10)
    first = numbers.of(key(0))
    first.next = 5
    first.is_used = False
    assert numbers.of(key(0)).next == 5
    assert numbers.of(key(1)).next == 0


def test_one_that_was_forgotten_begins_above_all_that_were() -> None:
    numbers = Numbers(2)
    for partition, end in ((0, 30), (1, 10)):
        number = numbers.of(key(partition))
        number.next, number.is_used = end, False
    assert numbers.of(key(2)).next == 30, "0 made room"
    numbers.of(key(1))
    assert numbers.of(key(3)).next == 30, "all others are used: there are more than the limit"
    assert numbers.of(key(0)).next == 30


def test_one_that_is_used_is_never_forgotten() -> None:
    numbers = Numbers(1)
    used = numbers.of(key(0))
    numbers.of(key(1))
    used.next = 9
    used.is_used = False
    assert numbers.of(key(0)).next == 9
