"""Records as the commands read and print them: JSON lines, which `produce --input json` takes back.

A record is one JSON object: topic, partition, offset, timestamp_ms, key, value and headers (a list of objects with name
and value), for `consume` also delivery_count. Bytes that are not UTF-8 stand in base64 in the field `key_base64`,
`value_base64`, or of a header `value_base64`. `produce` reads key, value and headers, and ignores the rest: the topic
that records are copied to may have other partitions. JSON must be UTF-8. Plain values may be any bytes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Message

from kshare.arguments import is_unicode
from kshare.failure import BAD_USE, CommandFailed
from kshare.output import Value

ANY_PARTITION = -1
BASE64 = "_base64"

Header = tuple[str, bytes | None]


class NewRecord(NamedTuple):
    """A record to produce; `partition` -1: the client chooses, by the key if there is one."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int = ANY_PARTITION


# Reading


def bytes_of_argument(text: str) -> bytes:
    """The bytes of an argument of the command line, which Python decodes with surrogates where they are not UTF-8."""
    return text.encode(errors="surrogateescape")


def lines_of(stream: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a stream without their ends, which are those of Unix or Windows; CommandFailed."""
    try:
        for line in stream:
            yield line.removesuffix(b"\n").removesuffix(b"\r") if line.endswith(b"\n") else line
    except OSError as error:
        raise CommandFailed(f"cannot read stdin: {error.strerror or error}", BAD_USE) from None


def parse_headers(texts: Sequence[str]) -> tuple[Header, ...]:
    """Parses NAME=VALUE entries of --header; CommandFailed."""
    found: list[Header] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise CommandFailed(f"--header must be NAME=VALUE, found {text!r}", BAD_USE)
        if not is_unicode(name):
            raise CommandFailed(f"the name of --header {text!r} is not UTF-8", BAD_USE)
        found.append((name, bytes_of_argument(value)))
    return tuple(found)


def records_of_values(values: Iterable[bytes], template: NewRecord, key_separator: str | None) -> Iterator[NewRecord]:
    """A record for each value; with a separator the part before it is the record's key. CommandFailed."""
    for whole in values:
        if key_separator is None:
            yield template._replace(value=whole)
            continue
        key, found, value = whole.partition(bytes_of_argument(key_separator))
        if not found:
            text = whole.decode(errors="backslashreplace")
            raise CommandFailed(f"no {key_separator!r} of --key-separator in {text!r}", BAD_USE)
        yield template._replace(key=key, value=value)


def records_of_files(paths: Iterable[Path], template: NewRecord) -> Iterator[NewRecord]:
    """A record for each file, whose whole content is the value; CommandFailed."""
    for path in paths:
        try:
            yield template._replace(value=path.read_bytes())
        except OSError as error:
            raise CommandFailed(f"--file {path}: {error.strerror or error}", BAD_USE) from None


def records_of_json(lines: Iterable[bytes], template: NewRecord) -> Iterator[NewRecord]:
    """A record for each line that is not blank; the template applies where a line has no such field. CommandFailed."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = _record_of(json.loads(line.decode()), template)
        except RecursionError:
            raise CommandFailed(f"line {number} is not a record: its JSON is nested too deeply", BAD_USE) from None
        except ValueError as problem:
            raise CommandFailed(f"line {number} is not a record: {problem}", BAD_USE) from None
        yield record


def _record_of(found: object, template: NewRecord) -> NewRecord:
    if not isinstance(found, dict):
        raise ValueError('a record is a JSON object such as {"key": "k", "value": "v"}')
    if "value" not in found and "value" + BASE64 not in found:
        raise ValueError("it has no field value (null for a record without a value)")
    has_key = "key" in found or "key" + BASE64 in found
    return NewRecord(
        value=_bytes_of(found, "value"),
        key=_bytes_of(found, "key") if has_key else template.key,
        headers=(*template.headers, *_headers_of(found.get("headers", []))),
        partition=template.partition,
    )


def _headers_of(found: object) -> Iterator[Header]:
    if not isinstance(found, list):
        raise ValueError('headers must be a list of objects such as {"name": "n", "value": "v"}')
    for header in found:
        if not isinstance(header, dict) or not isinstance(header.get("name"), str):
            raise ValueError('a header is an object such as {"name": "n", "value": "v"}')
        if not is_unicode(header["name"]):  # librdkafka's client crashes with such a name
            raise ValueError(f"the name of header {header['name']!r} is not UTF-8")
        yield header["name"], _bytes_of(header, "value")


def _bytes_of(found: Mapping[str, object], field: str) -> bytes | None:
    encoded = found.get(field + BASE64)
    if isinstance(encoded, str):
        return base64.b64decode(encoded, validate=True)
    text = found.get(field)
    if text is None:
        return None
    if not isinstance(text, str):  # any other JSON value is produced as JSON
        return json.dumps(text, ensure_ascii=False).encode()
    return text.encode()


# Printing


def json_line(message: Message) -> str:
    """A record that was read, as one line of JSON; with its delivery count if a share consumer read it."""
    kind, timestamp_ms = message.timestamp()
    record: dict[str, Value] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": timestamp_ms if kind else None,
    }
    count = message.delivery_count()
    if count is not None:
        record["delivery_count"] = count
    record.update(_field("key", message.key()))
    record.update(_field("value", message.value()))
    record["headers"] = _printed_headers(message)
    return json.dumps(record, ensure_ascii=False)


def _printed_headers(message: Message) -> Value:
    """Null if a name is not UTF-8: `produce` refuses such a line, instead of a copy without the headers."""
    try:
        headers = message.headers() or ()
    except SystemError:  # from confluent-kafka, which decodes the names
        return None
    return [{"name": header[0], **_field("value", header[1])} for header in headers]


def _field(name: str, raw: str | bytes | None) -> dict[str, Value]:
    if raw is None or isinstance(raw, str):
        return {name: raw}
    try:
        return {name: raw.decode()}
    except UnicodeDecodeError:
        return {name + BASE64: base64.b64encode(raw).decode()}
