"""Requests and responses against kio, which writes and reads the same definitions in another way."""

from __future__ import annotations

import dataclasses
import io
import struct
import subprocess
import sys
import uuid
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.serial._introspect import classify_field, get_field_tag, is_optional

from kshare_core.work_slices import SLICE_ELEMENTS
from kshare_gateway.dispatch import SERVED_APIS, is_supported
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.requests.fetch import FetchPartition, FetchRequest, FetchTopic
from kshare_wire.generated.requests.find_coordinator import FindCoordinatorRequest
from kshare_wire.generated.requests.metadata import MetadataRequest
from kshare_wire.generated.requests.produce import ProduceRequest
from kshare_wire.generated.requests.share_acknowledge import ShareAcknowledgeRequest
from kshare_wire.generated.requests.share_fetch import ShareFetchRequest
from kshare_wire.generated.responses import fetch, share_fetch
from kshare_wire.generated.responses.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kshare_wire.messages import (
    MAXIMUM_ELEMENTS,
    MAXIMUM_TAGGED_FIELDS,
    MalformedRequest,
    Struct,
    decode_request,
    decode_request_in_slices,
    decode_response,
    encode_array_in_slices,
    encode_request,
    encode_response,
    encode_response_in_slices,
    is_flexible,
)
from support.gateway.harness import build
from support.wire.typed_messages import ALL_REQUESTS, message_of

ALL_VERSIONS = [
    (api_key, version)
    for api_key, served in SERVED_APIS.items()
    for version in range(served.versions.minimum, served.versions.maximum + 1)
]
SHARE_FETCH_START = b"\x02g\x02m" + bytes(24)


def _value(field: Any, shape: Any, draw: Any) -> Any:
    kind = str(field.metadata.get("kafka_type"))
    if dataclasses.is_dataclass(shape.type_):
        return _entity(shape.type_, draw)
    if kind == "string":
        return draw(st.text(max_size=8))
    if kind in ("bytes", "records"):
        return draw(st.binary(max_size=8))
    if kind == "uuid":
        return uuid.UUID(bytes=draw(st.binary(min_size=16, max_size=16)))
    if kind == "bool":
        return draw(st.booleans())
    if kind == "float64":
        return draw(st.floats(allow_nan=False))
    if kind == "error_code":
        from kio.schema.errors import ErrorCode

        return draw(st.sampled_from(list(ErrorCode)))
    if kind.startswith("timedelta"):
        return timedelta(milliseconds=draw(st.integers(0, 1 << 30)))
    if kind == "datetime_i64":
        return datetime.fromtimestamp(draw(st.integers(1, 1 << 30)), UTC)
    size = int(kind.removeprefix("uint").removeprefix("int"))
    return draw(st.integers(0 if kind.startswith("u") else -(1 << size - 1), (1 << size - 1) - 1))


def _entity(kind: Any, draw: Any) -> Any:
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        shape: Any = classify_field(field)
        if get_field_tag(field) is not None and draw(st.booleans()):
            continue
        may_be_null = is_optional(field) and get_field_tag(field) is None and field.metadata.get("kafka_type") != "uuid"
        if may_be_null and draw(st.booleans()):
            arguments[field.name] = None
        elif shape.is_array:
            arguments[field.name] = tuple(_value(field, shape, draw) for _ in range(draw(st.integers(0, 2))))
        else:
            arguments[field.name] = _value(field, shape, draw)
    try:
        return kind(**arguments)
    except TypeError:  # a tagged field without a default was left out
        for field in dataclasses.fields(kind):
            if field.name not in arguments and field.default is dataclasses.MISSING:
                shape = classify_field(field)
                many = shape.is_array
                arguments[field.name] = () if many else _value(field, shape, draw)
        return kind(**arguments)


def _plain(value: Any, names: bool) -> Any:
    """A kio value as this codec shows it."""
    if dataclasses.is_dataclass(value):
        shown = {}
        for field in dataclasses.fields(value):
            kind = str(field.metadata.get("kafka_type"))
            name = field.name + "_ms" if kind.startswith(("timedelta", "datetime")) else field.name
            inner = getattr(value, field.name)
            if kind == "uuid" and inner is None:
                inner = uuid.UUID(int=0)
            if kind == "datetime_i64" and inner is None:
                inner = -1
            if kind == "records" and inner is not None and not names:
                inner = [inner]
            shown[name] = inner if kind == "records" and not names else _plain(inner, names)
        return shown
    if isinstance(value, tuple | list):
        return [_plain(item, names) for item in value]
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, timedelta):
        return round(value / timedelta(milliseconds=1))
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    return value


def _same(message: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return isinstance(message, Struct) and all(_same(getattr(message, name), expected[name]) for name in expected)
    if isinstance(expected, list):
        return len(message) == len(expected) and all(map(_same, message, expected))
    return bool(message == expected)


def test_the_served_versions_stay_within_what_kio_describes() -> None:
    for api_key, served in SERVED_APIS.items():
        known = set(schema_name_map[api_key_map[api_key]])
        assert set(range(served.versions.minimum, served.versions.maximum + 1)) <= known, api_key.name


def test_the_versions_that_the_two_clients_need_are_there() -> None:
    needed = {
        ApiKey.METADATA: (12, 13),
        ApiKey.FIND_COORDINATOR: (2, 6),
        ApiKey.CREATE_TOPICS: (4, 7),
        ApiKey.PRODUCE: (3, 7, 13),
        ApiKey.FETCH: (4, 16, 18),
        ApiKey.LIST_OFFSETS: (7, 11),
        ApiKey.SHARE_GROUP_HEARTBEAT: (1,),
        ApiKey.SHARE_FETCH: (1, 2),
        ApiKey.SHARE_ACKNOWLEDGE: (1, 2),
        ApiKey.API_VERSIONS: (0, 3, 4),
    }
    for api_key, versions in needed.items():
        assert all(is_supported(api_key, version) for version in versions), api_key.name
    assert not is_supported(ApiKey.API_VERSIONS, 5)
    assert not is_supported(ApiKey.SHARE_FETCH, 0)
    assert not is_supported(999, 0)


@pytest.mark.parametrize(("api_key", "version"), ALL_VERSIONS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_requests_are_read_as_kio_writes_them(api_key: int, version: int, data: st.DataObject) -> None:
    request = _entity(load_request_schema(api_key, version), data.draw)
    written = io.BytesIO()
    entity_writer(type(request))(written, request)
    frame = b"head" + written.getvalue()
    kind = ALL_REQUESTS[api_key]
    found = decode_request(kind, version, memoryview(frame), 4)
    assert _same(found, _tagged_defaults_aside(request))
    in_slices, _ = result_of(decode_request_in_slices(kind, version, memoryview(frame), 4))
    assert _same(in_slices, _tagged_defaults_aside(request)) and in_slices == found


@pytest.mark.parametrize(("api_key", "version"), ALL_VERSIONS)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_kio_reads_requests_as_they_were_meant(api_key: int, version: int, data: st.DataObject) -> None:
    request = _entity(load_request_schema(api_key, version), data.draw)
    shown = {name: value for name, value in _plain(request, True).items() if value is not None}
    message = message_of(ALL_REQUESTS[api_key], shown)
    written = b"".join(encode_request(message, version, 5, "me"))
    start = 4 + 8 + 4 + is_flexible(api_key, version)
    assert struct.unpack_from(">ihhih", written) == (len(written) - 4, api_key, version, 5, 2)
    read, size = entity_reader(type(request))(written, start)
    assert start + size == len(written)
    assert _plain(read, True) == _plain(request, True)
    found = decode_request(type(message), version, memoryview(written), start)
    assert b"".join(encode_request(found, version, 5, "me")) == written


def _tagged_defaults_aside(request: Any) -> Any:
    shown = _plain(request, True)
    for field in dataclasses.fields(request):
        if get_field_tag(field) is not None and dataclasses.is_dataclass(getattr(request, field.name)):
            del shown[field.name]  # an absent tagged struct shows None here, a default struct in kio
    return shown


@pytest.mark.parametrize(("api_key", "version"), ALL_VERSIONS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_kio_reads_responses_as_they_were_meant(api_key: int, version: int, data: st.DataObject) -> None:
    response = _entity(load_response_schema(api_key, version), data.draw)
    message = message_of(ALL_REQUESTS[api_key].RESPONSE, _plain(response, False))
    written = b"".join(encode_response(message, version, 77))
    in_slices = result_of(encode_response_in_slices(message, version, 77))
    assert b"".join(in_slices) == written
    length, correlation_id = struct.unpack_from(">ii", written)
    start = 9 if api_key != ApiKey.API_VERSIONS and is_flexible(api_key, version) else 8
    read, size = entity_reader(load_response_schema(api_key, version))(written, start)
    assert (length, correlation_id, start + size) == (len(written) - 4, 77, len(written))
    assert _plain(read, False) == _plain(response, False)
    found = decode_response(type(message), version, memoryview(written)[4:])
    assert b"".join(encode_response(found, version, 77)) == written


def result_of(steps: Generator[None, None, Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def test_long_messages_are_read_and_written_in_slices() -> None:
    elements = 10 * SLICE_ELEMENTS
    body = struct.pack(">i", elements) + b"".join(struct.pack(">h", 1) + b"t" for _ in range(elements)) + b"\0"
    steps = decode_request_in_slices(MetadataRequest, 4, memoryview(body), 0)
    assert len(list(steps)) == 10
    wide = [MetadataResponsePartition(partition_index=each) for each in range(elements)]
    response = MetadataResponse(topics=[MetadataResponseTopic(name="wide", partitions=wide)])
    assert len(list(encode_response_in_slices(response, 12, 1))) == 10
    encoded = result_of(encode_array_in_slices(MetadataResponse, 12, ("topics", "partitions"), wide))
    joined = MetadataResponse(topics=[MetadataResponseTopic(name="wide", partitions=encoded)])
    assert b"".join(encode_response(joined, 12, 1)) == b"".join(encode_response(response, 12, 1))
    with pytest.raises(MalformedRequest, match="where 0 bytes are left"):
        result_of(decode_request_in_slices(MetadataRequest, 4, memoryview(body[:-5]), 0))


def test_elements_of_a_request_are_counted_at_every_depth_but_for_those_of_one_byte() -> None:
    batch = {"first_offset": 0, "last_offset": 9, "acknowledge_types": [1] * 10}
    partitions = [{"partition_index": 0, "acknowledgement_batches": [batch] * 3}]
    topics = [{"topic_id": uuid.UUID(int=1), "partitions": partitions}] * 2
    request = build(ApiKey.SHARE_ACKNOWLEDGE, 1, {"group_id": "g", "member_id": "m", "topics": topics})
    written = io.BytesIO()
    entity_writer(type(request))(written, request)
    _, elements = result_of(decode_request_in_slices(ShareAcknowledgeRequest, 1, memoryview(written.getvalue()), 0))
    assert elements == 2 * (1 + 1 + 3)


def test_record_bytes_are_not_copied() -> None:
    pieces = [memoryview(b"first"), memoryview(b"second")]
    partition = share_fetch.PartitionData(partition_index=3, records=pieces)
    topic = share_fetch.ShareFetchableTopicResponse(topic_id=bytes(16), partitions=[partition])
    written = encode_response(share_fetch.ShareFetchResponse(responses=[topic]), 1, 1)
    assert [part for part in written if part is pieces[0] or part is pieces[1]] == pieces
    frame = memoryview(b"\x00\x00\x01" + bytes(4) + b"\x02" + bytes(16) + b"\x02" + bytes(4) + b"\x04abc\0\0\0")
    request = decode_request(ProduceRequest, 13, frame, 0)
    records = request.topic_data[0].partition_data[0].records
    assert records is not None
    assert bytes(records) == b"abc" and records.obj is frame.obj


def test_a_field_that_no_version_has_is_refused() -> None:
    with pytest.raises(TypeError, match="throttel_time_ms"):
        MetadataResponse(throttel_time_ms=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="throttel_time_ms"):
        MetadataResponse().throttel_time_ms = 1  # type: ignore[attr-defined]


def test_fields_of_other_versions_show_their_defaults() -> None:
    request = decode_request(ShareFetchRequest, 1, memoryview(SHARE_FETCH_START + b"\x01\x01\x00"), 0)
    assert (request.share_acquire_mode, request.is_renew_ack) == (0, False)
    found = decode_request(FindCoordinatorRequest, 0, memoryview(b"\x00\x01g"), 0)
    assert (found.key, found.key_type, found.coordinator_keys) == ("g", 0, ())


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [
        pytest.param(78, 1, SHARE_FETCH_START + b"\xff\xff\xff\xff\x0f", id="array of 2^32 structs"),
        pytest.param(78, 1, SHARE_FETCH_START + b"\xff\xff\xff\xff\xff\xff", id="endless varint"),
        pytest.param(3, 1, struct.pack(">i", (1 << 31) - 1), id="array of 2^31 - 1 structs"),
        pytest.param(3, 1, struct.pack(">i", -2), id="negative array length"),
        pytest.param(10, 0, struct.pack(">h", -1), id="null where it is not allowed"),
        pytest.param(10, 0, struct.pack(">h", 30_000) + b"abc", id="string longer than the request"),
        pytest.param(10, 0, b"\x00\x02\xff\xfe", id="not UTF-8"),
        pytest.param(0, 3, b"\xff\xff\x00\x01" + bytes(4) + struct.pack(">i", 1) + b"\x00\x01t", id="ends early"),
        pytest.param(78, 1, b"", id="empty"),
        pytest.param(78, 1, SHARE_FETCH_START + b"\x01\x01\xff\xff\x7f", id="two million tagged fields"),
        pytest.param(78, 1, SHARE_FETCH_START + b"\x01\x01\x01\x05\x7f", id="tagged field longer than the request"),
        pytest.param(20, 1, struct.pack(">i", MAXIMUM_ELEMENTS + 1) + bytes(4 * MAXIMUM_ELEMENTS), id="too many"),
    ],
)
def test_hostile_bytes_are_refused(api_key: int, version: int, body: bytes) -> None:
    with pytest.raises(MalformedRequest):
        decode_request(ALL_REQUESTS[api_key], version, memoryview(body), 0)


def test_unknown_tagged_fields_are_limited_in_a_request_as_a_whole() -> None:
    """A topic of ShareFetch takes 40 bytes with 10 of them, so that a limit per struct allows millions in a frame."""
    topic = bytes(16) + b"\x01" + b"\x0a" + b"\x05\x00" * 10
    limit = MAXIMUM_TAGGED_FIELDS // 10
    for topics, refused in ((limit, False), (limit + 1, True)):
        count = bytes([(topics + 1) & 0x7F | 0x80, (topics + 1) >> 7])
        body = SHARE_FETCH_START + count + topic * topics + b"\x01\x00"
        steps = decode_request_in_slices(ShareFetchRequest, 1, memoryview(body), 0)
        if refused:
            with pytest.raises(MalformedRequest, match=r"10 tagged fields at byte .*allowed are 4000 unknown ones"):
                result_of(steps)
        else:
            request, _ = result_of(steps)
            assert len(request.topics) == topics


def test_tagged_fields_that_structs_define_do_not_count() -> None:
    """Brokers may send one with each partition, of which a request or a response has many."""
    partitions = MAXIMUM_TAGGED_FIELDS + 1
    fetched = [FetchPartition(partition=each, replica_directory_id=b"d" * 16) for each in range(partitions)]
    request = FetchRequest(topics=[FetchTopic(topic_id=bytes(16), partitions=fetched)])
    frame = memoryview(b"".join(encode_request(request, 17, 1, None)))
    assert decode_request(FetchRequest, 17, frame, 15).topics[0].partitions == fetched
    leader = fetch.LeaderIdAndEpoch(leader_id=3, leader_epoch=5)
    data = [fetch.PartitionData(partition_index=each, current_leader=leader) for each in range(partitions)]
    response = fetch.FetchResponse(responses=[fetch.FetchableTopicResponse(topic_id=bytes(16), partitions=data)])
    written = b"".join(encode_response(response, 17, 1))
    read = decode_response(fetch.FetchResponse, 17, memoryview(written)[4:])
    assert [each.current_leader for each in read.responses[0].partitions] == [leader] * partitions


@settings(max_examples=300, deadline=None)
@given(which=st.sampled_from(ALL_VERSIONS), body=st.binary(max_size=200))
def test_garbage_is_read_or_refused_and_nothing_else(which: tuple[int, int], body: bytes) -> None:
    try:
        decode_request(ALL_REQUESTS[which[0]], which[1], memoryview(body), 0)
    except MalformedRequest as refusal:
        assert str(refusal)


def test_reading_and_writing_imports_no_modules_of_kio() -> None:
    """There is one for each version; those of an API take 100 ms, in which a gateway's event loop would stand still."""
    script = (
        "import sys\n"
        "from kshare_wire.error_codes import error_codes\n"
        "from kshare_wire.generated.requests.api_versions import ApiVersionsRequest\n"
        "from kshare_wire.messages import decode_request, encode_response\n"
        "decode_request(ApiVersionsRequest, 3, memoryview(bytes([2, 0x61, 2, 0x62, 0])), 0)\n"
        "encode_response(ApiVersionsRequest.RESPONSE(), 3, 1)\n"
        "error_codes(ApiVersionsRequest.RESPONSE())\n"
        "print(*(name for name in sys.modules if name.split('.')[0] == 'kio'))\n"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.split() == []
