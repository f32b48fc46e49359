"""Options and offsets of kshare-log, without a cluster."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from kshare_kafka_client.properties import InvalidOption, producer_properties, reader_properties
from kshare_kafka_client.range_reader import OffsetRange
from kshare_kafka_client.topics import Partition
from kshare_spark.log_source import LogDataSource
from kshare_spark.log_source.arrow import ARROW_SCHEMA, ARROW_SCHEMA_WITH_HEADERS
from kshare_spark.log_source.offsets import (
    InvalidOffset,
    decode_offset,
    encode_offset,
    next_offset,
    ranges_between,
    shared_out,
    split,
)
from kshare_spark.log_source.options import parse_options
from kshare_spark.record_columns import COLUMNS, COLUMNS_WITH_HEADERS

NEEDED = {"kafka.bootstrap.servers": "a:1", "subscribe": "orders"}
A0, A1, B0 = Partition("a", 0), Partition("a", 1), Partition("b", 0)


def options(**given: str) -> CaseInsensitiveDict:
    return CaseInsensitiveDict({**NEEDED, **given})


def test_options_have_sparks_names_in_any_case() -> None:
    found = parse_options(
        CaseInsensitiveDict(
            {
                "KAFKA.bootstrap.servers": "a:1,b:2",
                "kafka.security.protocol": "SSL",
                "Subscribe": " orders, bills,orders ",
                "startingoffsets": '{"orders": {"0": 23, "1": -2}}',
                "MAXOFFSETSPERTRIGGER": "50",
                "includeHeaders": "TRUE",
                "failOnDataLoss": "false",
                "minPartitions": "7",
                "kafkaConsumer.pollTimeoutMs": "1500",
            }
        )
    )
    assert found.topics == ("orders", "bills")
    assert found.properties == {"bootstrap.servers": "a:1,b:2", "security.protocol": "SSL"}
    assert found.starting_offsets == {Partition("orders", 0): 23, Partition("orders", 1): -2}
    assert (found.max_offsets_per_trigger, found.min_partitions, found.poll_timeout_s) == (50, 7, 1.5)
    assert (found.include_headers, found.fail_on_data_loss) == (True, False)


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    found = parse_options(options())
    assert (found.starting_offsets, found.ending_offsets, found.max_offsets_per_trigger) == (None, "latest", None)
    assert (found.include_headers, found.fail_on_data_loss, found.poll_timeout_s) == (False, True, 120.0)
    assert found.offset_reset == "latest"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("subscribe", " , ", "names no topic"),
        ("assign", '{"a": [0]}', "either option subscribe"),
        ("startingOffsets", "first", "startingOffsets is no JSON"),
        ("startingOffsets", '{"a": 5}', "must be earliest, latest or like"),
        ("startingOffsets", '{"a": {"x": 5}}', "must be earliest, latest or like"),
        ("startingOffsets", '{"a": {"0": -3}}', "must be earliest, latest or like"),
        ("startingOffsets", '{"a": {"0": true}}', "must be earliest, latest or like"),
        ("startingOffsets", "[]", "must be a JSON object"),
        ("endingOffsets", "earliest", "cannot be earliest"),
        ("endingOffsets", '{"a": {"0": -2}}', "cannot be earliest"),
        ("maxOffsetsPerTrigger", "0", "must be a whole number above 0, found '0'"),
        ("minPartitions", "many", "found 'many'"),
        ("includeHeaders", "yes", "must be true or false, found 'yes'"),
        ("offsetReset", "none", "must be earliest or latest, found 'none'"),
        ("subscribePattern", "a.*", "unknown option 'subscribepattern'"),
        ("kafka.bootstrap.servers", "", "kafka.bootstrap.servers is missing"),
    ],
)
def test_a_wrong_option_is_named_with_its_value(name: str, value: str, text: str) -> None:
    with pytest.raises(InvalidOption, match=re.escape(text)):
        parse_options(options(**{name: value}))


def test_what_a_reader_relies_on_cannot_be_set() -> None:
    with pytest.raises(InvalidOption, match=r"kafka\.auto\.offset\.reset cannot be set"):
        reader_properties({"auto.offset.reset": "latest"})
    with pytest.raises(InvalidOption, match=r"kafka\.enable\.idempotence cannot be set"):
        producer_properties({"enable.idempotence": "false"})
    assert reader_properties({"isolation.level": "read_uncommitted"})["isolation.level"] == "read_uncommitted"


def test_properties_are_never_shown_and_unknown_ones_are_refused_by_name() -> None:
    source = LogDataSource(options(**{"kafka.sasl.password": "secret", "kafka.no.such": "secret"}))
    assert "secret" not in repr(parse_options(source.options))
    with pytest.raises(InvalidOption, match=r'No such configuration property: "no\.such"') as refused:
        source.reader(source.schema()).partitions()
    assert "secret" not in str(refused.value)


def test_arrow_columns_are_what_spark_makes_of_the_schema() -> None:
    assert to_arrow_schema(COLUMNS, timezone="UTC").equals(ARROW_SCHEMA)
    assert to_arrow_schema(COLUMNS_WITH_HEADERS, timezone="UTC").equals(ARROW_SCHEMA_WITH_HEADERS)
    source = LogDataSource(options(includeHeaders="true"))
    assert source.schema() == COLUMNS_WITH_HEADERS
    with pytest.raises(InvalidOption, match="takes no other schema"):
        source.reader(StructType([StructField("value", StringType())]))
    with pytest.raises(InvalidOption, match="endingOffsets is for batch reading only"):
        LogDataSource(options(endingOffsets='{"orders": {"0": 5}}')).streamReader(COLUMNS)


def test_an_offset_says_its_whole_range() -> None:
    ranges = [OffsetRange("b", 0, 4, 4), OffsetRange("a", 10, 5, 20), OffsetRange("a", 2, 0, 3)]
    offset = encode_offset(ranges)
    assert json.dumps(offset) == (
        '{"a": {"2": {"from": 0, "until": 3}, "10": {"from": 5, "until": 20}}, "b": {"0": {"from": 4, "until": 4}}}'
    )
    assert sorted(decode_offset(offset).values()) == sorted(ranges)


@pytest.mark.parametrize("wrong", [{"a": {"0": 5}}, {"a": 3}, {"a": {"x": {"from": 1, "until": 2}}}, {"a": {"0": {}}}])
def test_an_offset_of_another_source_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidOffset, match="no offset of the format kshare-log"):
        decode_offset(wrong)


def test_the_first_batch_is_the_same_after_a_restart_with_another_initial_offset() -> None:
    first = encode_offset([OffsetRange("a", 0, 5, 5)])
    end = next_offset(first, {A0: 20}, None)
    later = encode_offset([OffsetRange("a", 0, 33, 33), OffsetRange("a", 1, 7, 7)])
    assert ranges_between(first, end) == ranges_between(later, end) == [OffsetRange("a", 0, 5, 20)]
    assert ranges_between({}, end) == [OffsetRange("a", 0, 5, 20)]


def test_nothing_new_is_the_same_offset_and_reads_nothing() -> None:
    start = encode_offset([OffsetRange("a", 0, 3, 5)])
    assert next_offset(start, {A0: 5}, None) == start
    assert next_offset(start, {A0: 2}, None) == start, "without a reset a shorter log is no news"
    assert next_offset(start, {A0: 5, A1: 0}, 10) == start, "nor is a partition without records"
    assert ranges_between(start, start) == []


def test_a_new_partition_is_read_from_its_first_record_and_a_missing_one_keeps_its_place() -> None:
    start = encode_offset([OffsetRange("a", 0, 3, 5)])
    end = next_offset(start, {A1: 4}, None)
    assert ranges_between(start, end) == [OffsetRange("a", 1, 0, 4)]
    assert decode_offset(end)[A0] == OffsetRange("a", 0, 5, 5)


def test_a_log_that_became_shorter_is_read_from_its_reset_on() -> None:
    start = encode_offset([OffsetRange("a", 0, 3, 50), OffsetRange("a", 1, 0, 5)])
    offset, read = start, []
    for resets in ({A0: 2}, None, None):
        end = next_offset(offset, {A0: 10, A1: 5}, 3, resets=resets)
        read += ranges_between(offset, json.loads(json.dumps(end)))
        offset = end
    assert read == [OffsetRange("a", 0, 2, 5), OffsetRange("a", 0, 5, 8), OffsetRange("a", 0, 8, 10)]
    assert next_offset(offset, {A0: 10, A1: 5}, 3) == offset


@pytest.mark.parametrize("end", [0, 10])
def test_a_reset_to_the_end_of_a_log_moves_the_position_without_a_record(end: int) -> None:
    start = encode_offset([OffsetRange("a", 0, 3, 50)])
    moved = next_offset(start, {A0: end}, None, resets={A0: end})
    assert moved != start
    assert ranges_between(start, moved) == []
    assert ranges_between(moved, next_offset(moved, {A0: 60}, None)) == [OffsetRange("a", 0, end, 60)]


ENDS = st.dictionaries(st.sampled_from([A0, A1, B0]), st.integers(0, 60), min_size=1)


@given(ENDS, st.lists(ENDS, max_size=4), st.one_of(st.none(), st.integers(1, 15)))
def test_batches_have_every_offset_once_in_order_and_keep_the_limit(
    initial: dict[Partition, int], growth: list[dict[Partition, int]], limit: int | None
) -> None:
    ends = dict(initial)
    offset = encode_offset(OffsetRange(*place, end, end) for place, end in ends.items())
    wanted = dict(ends)
    for more in [*growth, {}]:
        for place, count in more.items():
            ends[place] = ends.get(place, 0) + count
        while (end := next_offset(offset, ends, limit)) != offset:
            ranges = ranges_between(offset, json.loads(json.dumps(end)))
            assert ranges
            assert limit is None or sum(one.end_offset - one.first_offset for one in ranges) <= limit
            for one in ranges:
                assert one.first_offset == wanted.get(one.place, 0)
                wanted[one.place] = one.end_offset
            offset = end
    assert {place: wanted.get(place, 0) for place in ends} == ends


@given(st.dictionaries(st.sampled_from([A0, A1, B0]), st.integers(0, 1000), min_size=1), st.integers(1, 500))
def test_a_limit_is_shared_out_completely_and_in_proportion(waiting: dict[Partition, int], limit: int) -> None:
    taken = shared_out(waiting, limit)
    total = sum(waiting.values())
    assert sum(taken.values()) == min(limit, total)
    for place, count in waiting.items():
        assert 0 <= taken[place] <= count
        if total > limit:
            assert abs(taken[place] - count * limit / total) < 1


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 40)), max_size=3),
    st.integers(1, 9),
)
def test_split_ranges_are_the_same_offsets(lengths: list[tuple[int, int]], least: int) -> None:
    ranges = [OffsetRange("a", number, first, first + length) for number, (first, length) in enumerate(lengths)]
    pieces = split(ranges, least)
    before = [(one.partition, offset) for one in ranges for offset in range(one.first_offset, one.end_offset)]
    assert [(one.partition, offset) for one in pieces for offset in range(one.first_offset, one.end_offset)] == before
    assert len(pieces) >= min(least, len(before))
