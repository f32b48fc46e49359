"""The options of `kshare produce`, `kshare consume` and `kshare peek`, and the format of printed records."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka import AcknowledgeType, Message

from kshare.client_properties import read_properties
from kshare.cluster_metadata import reach, topic_of
from kshare.command_options import LOCAL, TABLE, AsJson, Bootstrap, CommandConfig, Output, wants_json
from kshare.commands.consume import consume as run_consume
from kshare.commands.consume import prepare_group
from kshare.commands.peek import peek as run_peek
from kshare.commands.produce import produce as run_produce
from kshare.commands.records import (
    ANY_PARTITION,
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
from kshare.output import Row, show_outcome

HEADING = "partition\toffset\tdelivery\tkey\tvalue"
PEEK_HEADING = "partition\toffset\tkey\tvalue"
WORDS = {AcknowledgeType.ACCEPT: "accepted", AcknowledgeType.RELEASE: "released", AcknowledgeType.REJECT: "rejected"}


class InputFormat(StrEnum):
    """What each value, or line of stdin, of `kshare produce` is."""

    TEXT = "text"
    JSON = "json"


def produce(
    topic: str,
    values: Annotated[list[str] | None, typer.Argument(help="Default: one value per line of stdin.")] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every record.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of every record; repeatable."),
    ] = None,
    file: Annotated[
        list[Path] | None, typer.Option("--file", "-f", help="A file whose content is one value; repeatable.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Each value begins with a key that ends at this text.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="The partition. Default: chosen by the key, else by the client.")
    ] = None,
    read: Annotated[
        InputFormat,
        typer.Option("--input", help="json: each value is a record as consume and peek --output json print it."),
    ] = InputFormat.TEXT,
    output: Output = TABLE,
    as_json: AsJson = False,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Produces records to an existing topic."""
    if file and (values or key_separator is not None or read is InputFormat.JSON):
        raise CommandFailed("--file cannot be combined with values, --key-separator or --input json", BAD_USE)
    if key_separator is not None and (key is not None or read is InputFormat.JSON or not key_separator):
        raise CommandFailed("--key-separator needs a text, and cannot be combined with --key or --input json", BAD_USE)
    template = NewRecord(
        value=None,
        key=None if key is None else bytes_of_argument(key),
        headers=parse_headers(header or []),
        partition=ANY_PARTITION if partition is None else partition,
    )
    given = map(bytes_of_argument, values) if values else lines_of(sys.stdin.buffer)
    if file:
        records = records_of_files(file, template)
    elif read is InputFormat.JSON:
        records = records_of_json(given, template)
    else:
        records = records_of_values(given, template, key_separator)
    count = run_produce(bootstrap, topic, records, read_properties(command_config))
    outcome: Row = {"topic": topic, "produced": count}
    show_outcome(f"produced {count} records to {topic}", outcome, as_json=wants_json(output, as_json))


def consume(
    topic: str,
    group: Annotated[str, typer.Option(help="The share group.")],
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Begin at the first record if the group is new in the topic.")
    ] = False,
    accept: Annotated[bool, typer.Option("--accept", help="Acknowledge records as processed (the default).")] = False,
    release: Annotated[
        bool, typer.Option("--release", help="Show the first records that arrive, release them, and end.")
    ] = False,
    reject: Annotated[bool, typer.Option("--reject", help="Reject records: they are not delivered again.")] = False,
    max_records: Annotated[
        int | None,
        typer.Option(
            "--max",
            min=1,
            help="Stop after so many records. Whole batches of a producer are acquired: the other records of a batch "
            "are released, which counts as a delivery, or shown too if it is their last one.",
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Stop when no record arrives for so many seconds.")
    ] = None,
    output: Output = TABLE,
    as_json: AsJson = False,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Consumes records as a member of a share group and acknowledges each."""
    answer = _one_answer(accept, release, reject)
    properties = read_properties(command_config)
    prepare_group(bootstrap, topic, group, from_beginning=from_beginning, note=_note, properties=properties)
    line_of = _lines(HEADING, _taken_line, as_json=wants_json(output, as_json))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the member leaves the group, as at Ctrl-C
    count = run_consume(
        bootstrap,
        topic,
        group,
        answer,
        limit=max_records,
        timeout_s=timeout,
        show=lambda message: typer.echo(line_of(message)),
        note=_note,
        properties=properties,
    )
    typer.echo(f"{WORDS[answer]} {count} records", err=True)


def peek(
    topic: str,
    group: Annotated[str | None, typer.Option(help="Begin at this share group's start offsets.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Begin at this offset of every partition.")] = None,
    max_records: Annotated[int, typer.Option("--max", min=1, help="Stop after so many records.")] = 20,
    output: Output = TABLE,
    as_json: AsJson = False,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Shows records without acquiring them: no group's locks, counts or offsets change."""
    if group is not None and offset is not None:
        raise CommandFailed("give only one of --group and --offset", BAD_USE)
    properties = read_properties(command_config)
    found = topic_of(reach(bootstrap, properties), topic)
    line_of = _lines(PEEK_HEADING, _line, as_json=wants_json(output, as_json))
    count = run_peek(
        bootstrap,
        found,
        group=group,
        partition=partition,
        offset=offset,
        limit=max_records,
        show=lambda message: typer.echo(line_of(message)),
        properties=properties,
    )
    typer.echo(f"{count} records", err=True)


def _lines(heading: str, line_of: Callable[[Message], str], *, as_json: bool) -> Callable[[Message], str]:
    """The format of records' lines, after the heading of a table was printed; JSON lines have none."""
    if as_json:
        return json_line
    typer.echo(heading)
    return line_of


def _note(text: str) -> None:
    typer.echo(f"kshare: {text}", err=True)


def _one_answer(accept: bool, release: bool, reject: bool) -> AcknowledgeType:
    if accept + release + reject > 1:
        raise CommandFailed("give only one of --accept, --release and --reject", BAD_USE)
    if release:
        return AcknowledgeType.RELEASE
    return AcknowledgeType.REJECT if reject else AcknowledgeType.ACCEPT


def _taken_line(message: Message) -> str:
    """Partition, offset, delivery count, key and value, separated by tabs."""
    return "\t".join(map(str, (*_place(message), message.delivery_count(), *_content(message))))


def _line(message: Message) -> str:
    """Partition, offset, key and value, separated by tabs."""
    return "\t".join(map(str, (*_place(message), *_content(message))))


def _place(message: Message) -> tuple[int | None, int | None]:
    return message.partition(), message.offset()


def _content(message: Message) -> tuple[str, str]:
    return _text(message.key()), _text(message.value())


def _text(raw: str | bytes | None) -> str:
    if raw is None:
        return ""
    return raw if isinstance(raw, str) else raw.decode(errors="backslashreplace")
