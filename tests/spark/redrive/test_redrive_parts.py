"""The parts of redrive that need no cluster: the ledger, the rate, what headers say, what a history has archived."""

from __future__ import annotations

import re
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_core.delivery_history import DeliveryEvent, EventType, HistoryRecord
from kshare_kafka_client.redrive.archived_runs import _History, _Place, without
from kshare_kafka_client.redrive.candidates import UNREADABLE_HEADERS, dead_letter, headers_of_moved
from kshare_kafka_client.redrive.ledger import SEGMENT_OFFSETS, MovedOffsets, joined, note_key, note_value, parse_note
from kshare_kafka_client.redrive.originals import SPAN_GAP_OFFSETS, spans
from kshare_kafka_client.redrive.pace import Pace
from kshare_kafka_client.redrive.request import (
    Account,
    BadRequest,
    GivenOffsets,
    RedriveFailed,
    RedriveRequest,
    Selection,
    parse_offsets,
)
from kshare_kafka_client.redrive.sources import RECORDS, SourceRange, Span, spans_of
from kshare_kafka_client.topics import Partition

OFFSETS = st.integers(0, 3 * SEGMENT_OFFSETS)


@given(st.lists(st.lists(OFFSETS, max_size=20), max_size=8), OFFSETS)
def test_the_ledger_knows_exactly_the_offsets_that_were_noted(batches: list[list[int]], other: int) -> None:
    moved, noted = MovedOffsets(), set[int]()
    stored: dict[bytes, bytes] = {}
    for batch in batches:
        changed = moved.with_offsets(batch)
        assert all((offset in moved) == (offset in noted) for offset in batch), "nothing is noted before it is durable"
        stored |= {note_key("id", 0, segment): note_value("dlq", runs) for segment, runs in changed.items()}
        moved.note(changed)
        noted.update(batch)
    notes = [parse_note(key, value) for key, value in stored.items()]
    again = MovedOffsets({segment: runs for _, _, segment, runs in notes})
    for offset in [other, *noted, *(offset + 1 for offset in noted), *(offset - 1 for offset in noted)]:
        assert (offset in moved) == (offset in again) == (offset in noted)
    for _, _, _, runs in notes:
        assert all(high + 1 < low for (_, high), (low, _) in pairwise(runs)), "runs are joined"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (b"id/0/0", b"{}"),
        (b"id/0", b'{"version":1,"moved":[]}'),
        (b"id/0/0", b'{"version":2,"moved":[]}'),
        (b"id/0/0", b'{"version":1,"moved":[[1]]}'),
        (b"id/0/0", b'{"version":1,"moved":3}'),
        (b"\xff/0/0", b'{"version":1,"moved":[]}'),
        (b"id/0/0", b"[]"),
    ],
)
def test_what_is_no_note_stops_everything(key: bytes, value: bytes) -> None:
    with pytest.raises(RedriveFailed, match="no note of a redrive"):
        parse_note(key, value)


def test_the_pace_lets_at_most_a_seconds_worth_go_at_once() -> None:
    now_s = [10.0]

    def sleep(duration_s: float) -> None:
        now_s[0] += duration_s

    pace = Pace(50.0, lambda: now_s[0], sleep)
    assert pace.batch_limit(1000) == 50
    went: list[float] = []
    for _ in range(4):
        pace.wait(25)
        went.append(now_s[0])
    assert went == [10.0, 10.5, 11.0, 11.5]
    now_s[0] += 60.0  # nobody saves up while idle
    pace.wait(50)
    pace.wait(50)
    assert now_s[0] == 72.5
    assert Pace(None, lambda: now_s[0], sleep).batch_limit(1000) == 1000
    assert Pace(0.2, lambda: now_s[0], sleep).batch_limit(1000) == 1


def message(headers: list[tuple[str, bytes | None]], key: bytes | None = None, value: bytes | None = None) -> Any:
    return SimpleNamespace(
        headers=lambda: headers,
        key=lambda: key,
        value=lambda: value,
        topic=lambda: "dlq.a",
        partition=lambda: 2,
        offset=lambda: 9,
        timestamp=lambda: (1, 77),
    )


def message_with_unreadable_headers() -> Any:
    def headers() -> Any:
        raise SystemError("headers returned a result with an exception set")

    found = message([])
    found.headers = headers
    return found


def test_a_letter_whose_headers_cannot_be_read_has_that_as_its_problem() -> None:
    assert dead_letter(message_with_unreadable_headers()).problem == UNREADABLE_HEADERS


def context(topic: str, partition: str, offset: str, text: str = "Offset rejected by client.") -> list[Any]:
    found = {"topic": topic, "partition": partition, "offset": offset, "group": "g", "delivery.count": "4"}
    return [(f"__dlq.errors.{name}", value.encode()) for name, value in {**found, "message": text}.items()]


def test_a_dead_letter_says_where_it_is_from() -> None:
    found = dead_letter(message(context("orders", "1", "5")))
    assert (found.topic, found.partition, found.offset, found.place) == ("orders", 1, 5, Partition("dlq.a", 2))
    assert (found.group_id, found.reason, found.delivery_count, found.time_ms) == ("g", "rejected", 4, 77)
    assert (found.has_content, found.problem) == (False, "")
    other = dead_letter(message(context("orders", "1", "5", "Offset delivery count exceeded the threshold."), b"k"))
    assert (other.reason, other.has_content) == ("delivery_count_limit", True)
    assert dead_letter(message(context("orders", "1", "5", "my own"))).reason == "my own"


@pytest.mark.parametrize("prefix", ["__dlq.source.", ""], ids=["renamed", "of an older version"])
def test_a_letter_of_a_letter_keeps_the_headers_that_were_the_records(prefix: str) -> None:
    inner = context("orders", "1", "5")
    copied = [(prefix + name, value) for name, value in inner]
    found = dead_letter(message([("own", b"1"), *copied, *context("dlq.b", "0", "3")]))
    assert (found.topic, found.partition, found.offset) == ("dlq.b", 0, 3)
    assert found.headers == [("own", b"1"), *inner]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        context("", "1", "5"),
        context("orders", "-1", "5"),
        context("orders", "x", "5"),
        context("orders", "1", "9" * 30),
    ],
)
def test_a_record_without_its_place_is_no_dead_letter(headers: list[Any]) -> None:
    assert dead_letter(message(headers)).problem.startswith("no dead letter")


def test_a_moved_record_says_from_where_and_how_often() -> None:
    found = dead_letter(message([("own", b"1"), *context("orders", "1", "5")]))
    first = headers_of_moved(found)
    assert first[0] == ("own", b"1")
    assert dict(first[1:]) == {
        "__redrive.topic": b"dlq.a",
        "__redrive.partition": b"2",
        "__redrive.offset": b"9",
        "__redrive.count": b"1",
    }
    again = headers_of_moved(found._replace(headers=first, from_offset=30))
    assert [name for name, _ in again] == [name for name, _ in first]
    assert dict(again)["__redrive.offset"] == b"30"
    assert dict(again)["__redrive.count"] == b"2"


@given(st.lists(st.integers(0, 20_000), min_size=1, max_size=30))
def test_spans_have_every_offset_and_no_long_gap(offsets: list[int]) -> None:
    found = list(spans(Partition("orders", 0), offsets))
    covered = [offset for span in found for offset in range(span.first_offset, span.end_offset)]
    assert len(covered) == len(set(covered))
    assert set(offsets) <= set(covered)
    assert len(covered) <= len(set(offsets)) * SPAN_GAP_OFFSETS


@given(
    st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda ends: (min(ends), max(ends))),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)).map(lambda run: (run[0], run[0] + run[1])), max_size=5),
)
def test_without_returns_the_offsets_that_are_not_taken(run: tuple[int, int], taken: list[tuple[int, int]]) -> None:
    left = [offset for first, last in without(run, joined(taken)) for offset in range(first, last + 1)]
    others = {offset for first, last in taken for offset in range(first, last + 1)}
    assert left == [offset for offset in range(run[0], run[1] + 1) if offset not in others]


RANGES = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 700), st.integers(1, 30)), max_size=12)


@given(RANGES)
def test_ranges_that_lie_close_are_read_together_and_none_is_lost(steps: list[tuple[int, int, int]]) -> None:
    ranges: list[SourceRange] = []
    ends = {0: 0, 1: 0}
    for partition, gap, length in steps:
        first = ends[partition] + gap
        ends[partition] = first + length
        ranges.append(SourceRange(RECORDS, "orders", partition, first, first + length, "g", "rejected", 1, 5))
    ranges.sort(key=lambda one: one[1:4])
    found = spans_of(ranges)
    assert [one for span in found for one in Span.from_json(span.to_json()).ranges] == ranges
    for span in found:
        assert len({one.place for one in span.ranges}) == 1
        for before, after in pairwise(span.ranges):
            assert after.first_offset - before.end_offset <= SPAN_GAP_OFFSETS
    for one, other in pairwise(found):
        assert one.place != other.place or other.offsets.first_offset - one.offsets.end_offset > SPAN_GAP_OFFSETS


def history(group: str, *events: DeliveryEvent) -> HistoryRecord:
    return HistoryRecord(1, 1, 0, group, "orders", "id", 0, 1, 1, events)


def archived(time_ms: int, first: int, last: int, reason: str | None = "rejected") -> DeliveryEvent:
    return DeliveryEvent(EventType.ARCHIVED, time_ms, first, last, delivery_count=2, reason=reason)


def test_a_history_tells_what_was_archived_without_dead_letters() -> None:
    told = _History(["workers", "others"])
    told.add(history("workers", archived(20, 5, 9), archived(30, 8, 12, "delivery_count_limit")))
    told.add(history("workers", archived(40, 20, 29), DeliveryEvent(EventType.DEAD_LETTERED, 39, 22, 24)))
    told.add(history("others", archived(10, 9, 9), archived(50, 22, 23), archived(60, 40, 49, "missing_in_log")))
    told.add(history("strangers", archived(1, 0, 99)))
    told.add(history("workers", DeliveryEvent(EventType.ACCEPTED, 70, 60, 61), archived(70, 70, 71, "below_log_start")))
    found = told.runs()
    assert list(found) == [_Place("orders", "id", 0)]
    runs = [(run.group_id, run.first_offset, run.last_offset, run.reason) for run in found[_Place("orders", "id", 0)]]
    assert runs == [
        ("others", 9, 9, "rejected"),
        ("workers", 5, 8, "rejected"),
        ("workers", 10, 12, "delivery_count_limit"),
        ("workers", 20, 21, "rejected"),
        ("workers", 25, 29, "rejected"),
        ("others", 22, 23, "rejected"),
    ]


def test_offsets_of_the_command_line() -> None:
    assert parse_offsets("orders:2:5-9") == GivenOffsets("orders", 2, 5, 9)
    assert parse_offsets("orders:0:7") == GivenOffsets("orders", 0, 7, 7)
    padded = "orders:00000000000:00000000000000000005-00000000000000000009"
    assert parse_offsets(padded) == GivenOffsets("orders", 0, 5, 9), "as in the names of Kafka's log segments"
    assert parse_offsets(f"orders:0:{5000 * '0'}7") == GivenOffsets("orders", 0, 7, 7)
    for wrong in (
        "orders",
        "orders:1",
        "orders:1:",
        "orders:1:2-",
        ":1:2",
        "orders:a:1",
        "orders:0:9-5",
        "a:0:-1",
        "a:0:1-2-3",
    ):
        with pytest.raises(BadRequest, match=re.escape(repr(wrong))):
            parse_offsets(wrong)


@pytest.mark.parametrize(
    ("request_of", "text"),
    [
        (RedriveRequest({}), "say what to redrive"),
        (RedriveRequest({}, dead_letter_topics=("a",), archived_groups=("g",)), "say what to redrive"),
        (RedriveRequest({}, dead_letter_topics=("a",), rate=0.0), "the rate must be above 0"),
        (RedriveRequest({}, dead_letter_topics=("a",), selection=Selection(since_ms=5, until_ms=5)), "before --until"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(request_of: RedriveRequest, text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        request_of.check()


def test_a_request_never_shows_its_properties() -> None:
    assert "secret" not in repr(RedriveRequest({"sasl.password": "secret"}))


def test_accounts_add_up_and_survive_json() -> None:
    one, other = Account(), Account()
    one.add_moved("orders", "rejected", 2)
    other.add_moved("orders", "rejected")
    other.add_moved("bills", "given")
    other.add_problem("gone", 3)
    other.already_moved = 4
    other.first_ones = [{"from": str(number)} for number in range(9)]
    one.add(Account.from_json(other.to_json()))
    assert one.moved == {"orders": {"rejected": 3}, "bills": {"given": 1}}
    assert (one.moved_count, one.problem_count, one.already_moved, len(one.first_ones)) == (4, 3, 4, 5)
