"""The options of `kshare produce`, `kshare consume` and `kshare peek`, and the format of printed records."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from confluent_kafka import AcknowledgeType, Message

from kshare.client_properties import read_properties
from kshare.cluster_metadata import reach, topic_of
from kshare.command_options import LOCAL, Bootstrap, CommandConfig
from kshare.commands.consume import consume as run_consume
from kshare.commands.consume import prepare_group
from kshare.commands.peek import peek as run_peek
from kshare.commands.produce import produce as run_produce
from kshare.failure import BAD_USE, CommandFailed

HEADING = "partition\toffset\tdelivery\tkey\tvalue"
PEEK_HEADING = "partition\toffset\tkey\tvalue"
WORDS = {AcknowledgeType.ACCEPT: "accepted", AcknowledgeType.RELEASE: "released", AcknowledgeType.REJECT: "rejected"}


def produce(
    topic: str,
    values: Annotated[list[str] | None, typer.Argument(help="Default: one value per line of stdin.")] = None,
    key: Annotated[str | None, typer.Option(help="The key of every record.")] = None,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Produces records to an existing topic."""
    lines = (line.rstrip("\n") for line in sys.stdin)
    count = run_produce(bootstrap, topic, key, values or lines, read_properties(command_config))
    typer.echo(f"produced {count} records to {topic}")


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
    max_records: Annotated[int | None, typer.Option("--max", min=1, help="Stop after so many records.")] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Stop when no record arrives for so many seconds.")
    ] = None,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Consumes records as a member of a share group and acknowledges each."""
    answer = _one_answer(accept, release, reject)
    properties = read_properties(command_config)
    prepare_group(bootstrap, topic, group, from_beginning=from_beginning, note=_note, properties=properties)
    typer.echo(HEADING)
    count = run_consume(
        bootstrap,
        topic,
        group,
        answer,
        limit=max_records,
        timeout_s=timeout,
        show=lambda message: typer.echo(_taken_line(message)),
        properties=properties,
    )
    typer.echo(f"{WORDS[answer]} {count} records", err=True)


def peek(
    topic: str,
    group: Annotated[str | None, typer.Option(help="Begin at this share group's start offsets.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Begin at this offset of every partition.")] = None,
    max_records: Annotated[int, typer.Option("--max", min=1, help="Stop after so many records.")] = 20,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Shows records without acquiring them: no group's locks, counts or offsets change."""
    if group is not None and offset is not None:
        raise CommandFailed("give only one of --group and --offset", BAD_USE)
    properties = read_properties(command_config)
    found = topic_of(reach(bootstrap, properties), topic)
    typer.echo(PEEK_HEADING)
    count = run_peek(
        bootstrap,
        found,
        group=group,
        partition=partition,
        offset=offset,
        limit=max_records,
        show=lambda message: typer.echo(_line(message)),
        properties=properties,
    )
    typer.echo(f"{count} records", err=True)


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
