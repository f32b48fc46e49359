"""Records as `kshare produce` reads them and `kshare peek` and `consume` print them."""

from __future__ import annotations

import base64
import errno
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message

from kshare.commands.records import (
    NewRecord,
    bytes_of_argument,
    json_line,
    lines_of,
    parse_headers,
    records_of_files,
    records_of_json,
    records_of_values,
)
from kshare.failure import BAD_USE, CommandFailed
from kshare.main import main

PLAIN = NewRecord(value=None)
NAME_OF_HALF_A_PAIR = rb'{"value": "v", "headers": [{"name": "h\ud800", "value": "b"}]}'


def test_headers_are_names_and_values() -> None:
    assert parse_headers(["trace=1=2", "empty="]) == (("trace", b"1=2"), ("empty", b""))
    assert parse_headers(["raw=" + os.fsdecode(b"\xff")]) == (("raw", b"\xff"),)
    with pytest.raises(CommandFailed, match="--header must be NAME=VALUE, found 'trace'"):
        parse_headers(["trace"])
    with pytest.raises(CommandFailed, match=r"the name of --header .* is not UTF-8"):
        parse_headers([os.fsdecode(b"\xff=1")])


def test_values_take_key_and_headers_of_the_options() -> None:
    template = NewRecord(value=None, key=b"k", headers=(("h", b"1"),), partition=3)
    assert list(records_of_values([b"a", b"\xff\xfe"], template, None)) == [
        template._replace(value=b"a"),
        template._replace(value=b"\xff\xfe"),
    ]


def test_keys_before_a_separator() -> None:
    (first, second) = records_of_values([b"k::v::w", b"::v"], PLAIN, "::")
    assert (first.key, first.value) == (b"k", b"v::w") and (second.key, second.value) == (b"", b"v")
    with pytest.raises(CommandFailed, match="no '::' of --key-separator in 'k:v'"):
        list(records_of_values([b"k:v"], PLAIN, "::"))


def test_bytes_of_the_command_line_and_of_stdin_are_those_that_were_given() -> None:
    assert [bytes_of_argument(os.fsdecode(raw)) for raw in ("ü".encode(), b"\xff")] == ["ü".encode(), b"\xff"]
    stream = io.BytesIO(b"\xff\xfe\n\n windows \r\n\r\r\nlast\r")
    assert list(lines_of(stream)) == [b"\xff\xfe", b"", b" windows ", b"\r", b"last\r"]
    with pytest.raises(CommandFailed, match="cannot read stdin: Is a directory") as refused:
        list(lines_of(_broken_stream()))
    assert refused.value.exit_code == BAD_USE


def _broken_stream() -> Iterator[bytes]:
    yield b"first"
    raise IsADirectoryError(errno.EISDIR, "Is a directory")


def test_a_file_is_one_value(tmp_path: Path) -> None:
    picture = tmp_path / "picture"
    picture.write_bytes(b"\xff\n\x00\n")
    assert [record.value for record in records_of_files([picture], PLAIN)] == [b"\xff\n\x00\n"]
    with pytest.raises(CommandFailed, match="No such file or directory") as refused:
        list(records_of_files([tmp_path / "other"], PLAIN))
    assert refused.value.exit_code == BAD_USE


def test_json_records() -> None:
    template = NewRecord(value=None, key=b"k", headers=(("h", b"1"),))
    lines = [
        '{"value": "v", "offset": 7, "delivery_count": 2}',
        "",
        '{"value": null, "key": null, "partition": 2, "offset": 1}',
        '{"value_base64": "/w==", "key": "ü", "headers": [{"name": "n", "value": null}]}',
        '{"value": {"amount": 3}}',
    ]
    assert list(records_of_json(map(str.encode, lines), template)) == [
        NewRecord(b"v", b"k", (("h", b"1"),)),
        NewRecord(None, None, (("h", b"1"),)),
        NewRecord(b"\xff", "ü".encode(), (("h", b"1"), ("n", None))),
        NewRecord(b'{"amount": 3}', b"k", (("h", b"1"),)),
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "line 2 is not a record: Expecting"),
        (b"[1]", "a record is a JSON object"),
        (b'{"key": "k"}', "it has no field value"),
        (b'{"value": "v", "headers": {"a": "b"}}', "headers must be a list"),
        (b'{"value": "v", "headers": [{"value": "b"}]}', "a header is an object"),
        (b'{"value_base64": "%"}', "line 2 is not a record: "),
        (b'{"value": "\xff"}', "line 2 is not a record: 'utf-8' codec can't decode byte 0xff"),
        (b'{"value": "\\udcff"}', "line 2 is not a record: 'utf-8' codec can't encode"),
        (NAME_OF_HALF_A_PAIR, r"line 2 is not a record: the name of header 'h\ud800' is not UTF-8"),
        (b'{"value": ' + b"[" * 100_000, "line 2 is not a record: its JSON is nested too deeply"),
    ],
)
def test_lines_that_are_no_records(line: bytes, problem: str) -> None:
    records = records_of_json([b"", line], PLAIN)
    with pytest.raises(CommandFailed) as refused:
        list(records)
    assert problem in str(refused.value) and refused.value.exit_code == BAD_USE


def message(**fields: object) -> Message:
    made = Message(topic="orders", partition=1, offset=5, **fields)  # type: ignore[arg-type]
    made.set_headers([("n", b"v"), ("bytes", b"\xff"), ("none", None)])
    return made


def test_a_printed_record_can_be_produced_again() -> None:
    record = NewRecord(b"\xfe\x00", "schlüssel".encode(), (("n", b"v"), ("bytes", b"\xff"), ("none", None)))
    line = json_line(message(value=record.value, key=record.key))
    assert list(records_of_json([line.encode()], PLAIN)) == [record]
    printed = json.loads(line)
    assert printed["topic"] == "orders" and printed["offset"] == 5 and "delivery_count" not in printed
    assert printed["key"] == "schlüssel" and base64.b64decode(printed["value_base64"]) == record.value
    assert "value" not in printed and printed["timestamp_ms"] is None


def test_a_record_without_key_and_value() -> None:
    printed = json.loads(json_line(Message(topic="t", partition=0, offset=0)))
    assert printed["key"] is None and printed["value"] is None and printed["headers"] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--file", "f", "value"],
        ["--file", "f", "--input", "json"],
        ["--key-separator", ":", "--key", "k", "value"],
        ["--key-separator", "", "value"],
        ["--header", "x", "value"],
    ],
)
def test_options_of_produce_that_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kshare", "produce", "orders", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    error = capsys.readouterr().err
    assert ended.value.code == BAD_USE and error.count("\n") == 1 and "--" in error
