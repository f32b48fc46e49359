"""The command line: which commands there are, their options, and what they print."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka import AcknowledgeType, Message
from rich.console import Console

from kshare.client_properties import read_properties
from kshare.commands.audit import audit
from kshare.commands.consume import consume as run_consume
from kshare.commands.groups import show_group, show_groups
from kshare.commands.metrics import description
from kshare.commands.nodes import show_nodes
from kshare.commands.partitions_command_line import partitions_app
from kshare.commands.produce import produce as run_produce
from kshare.commands.redrive import redrive
from kshare.commands.report import report
from kshare.commands.state.command_line import Coordinator, DataDir, state_app
from kshare.commands.state.coordinator_address import coordinator_address
from kshare.commands.topics import create_topic, delete_topic, show_topics
from kshare.demo.command import DEFAULT_ORDERS, run_demo
from kshare.failure import BAD_USE, CommandFailed
from kshare.up.command import LOCAL, UpOptions, run_up

app = typer.Typer(
    name="kshare",
    help="Queues over the Kafka protocol: share groups (KIP-932).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
topics_app = typer.Typer(help="Create, list and delete topics.", no_args_is_help=True)
groups_app = typer.Typer(help="List and describe groups.", no_args_is_help=True)
app.add_typer(topics_app, name="topics")
app.add_typer(groups_app, name="groups")
app.add_typer(partitions_app, name="partitions")
app.add_typer(state_app, name="state")
app.command()(audit)
app.command()(redrive)
app.command()(report)

CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        help="A property file for the connection, in librdkafka's names: security.protocol=ssl, ssl.ca.location, ...",
    ),
]
Bootstrap = Annotated[str, typer.Option("--bootstrap", metavar="HOST:PORT", help="A gateway of the cluster.")]


@app.command()
def up(
    data_dir: Annotated[Path, typer.Option(help="Where everything is stored; made when it is missing.")],
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help=f"Where clients connect; port 0 picks one. {LOCAL} without it and without `listeners` in --config.",
        ),
    ] = None,
    ready_file: Annotated[Path | None, typer.Option(help="Written with HOST:PORT when clients can connect.")] = None,
    single_process: Annotated[bool, typer.Option("--single-process", help="All roles in one process.")] = False,
    config: Annotated[
        Path | None, typer.Option(help="A property file with Kafka's broker configs and kshare.*.")
    ] = None,
    advertised: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="What clients are told to connect to, if not --listen.")
    ] = None,
    metrics_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where /metrics is served: each process at the next port, one with --single-process.",
        ),
    ] = None,
) -> None:
    """Starts all roles on this machine and keeps them running until Ctrl-C."""
    run_up(
        UpOptions(
            data_dir=data_dir,
            listen=listen,
            advertised=advertised,
            ready_file=ready_file,
            single_process=single_process,
            config_file=config,
            metrics_listen=metrics_listen,
        )
    )


@app.command()
def metrics(
    describe: Annotated[
        bool, typer.Option("--describe", help="All metrics with labels and meaning, as a Markdown document.")
    ] = False,
) -> None:
    """Describes the metrics that the roles show at /metrics."""
    if not describe:
        raise CommandFailed("give --describe; a running role shows its metrics at /metrics (--metrics-listen)", BAD_USE)
    typer.echo(description(), nl=False)


@app.command()
def demo(
    orders: Annotated[int, typer.Option(min=100, max=1_000_000, help="How many orders.")] = DEFAULT_ORDERS,
) -> None:
    """Orders, a pool of workers that crash, release and reject, and an account of every order."""
    if not run_demo(Console(), orders=orders):
        raise CommandFailed("the account is not right")


@app.command()
def nodes(coordinator: Coordinator = None, data_dir: DataDir = None) -> None:
    """Shows all nodes: role, id, epoch, address and lease."""
    show_nodes(coordinator_address(coordinator, data_dir), Console())


@topics_app.command("create")
def topics_create(
    name: str,
    partitions: Annotated[int | None, typer.Option(min=1, help="Without it the broker's num.partitions.")] = None,
    config: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A topic config; repeatable.")] = None,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Creates a topic."""
    create_topic(bootstrap, name, partitions, config or [], read_properties(command_config))
    typer.echo(f"created topic {name}")


@topics_app.command("list")
def topics_list(bootstrap: Bootstrap = LOCAL, command_config: CommandConfig = None) -> None:
    """Shows all topics."""
    show_topics(bootstrap, Console(), read_properties(command_config))


@topics_app.command("delete")
def topics_delete(name: str, bootstrap: Bootstrap = LOCAL, command_config: CommandConfig = None) -> None:
    """Deletes a topic and its records."""
    delete_topic(bootstrap, name, read_properties(command_config))
    typer.echo(f"deleted topic {name}")


@app.command()
def produce(
    topic: str,
    values: Annotated[list[str] | None, typer.Argument(help="Without any: one value a line from stdin.")] = None,
    key: Annotated[str | None, typer.Option(help="The key of every record.")] = None,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Writes records."""
    lines = (line.rstrip("\n") for line in sys.stdin)
    count = run_produce(bootstrap, topic, key, values or lines, read_properties(command_config))
    typer.echo(f"produced {count} records to {topic}")


@app.command()
def consume(
    topic: str,
    group: Annotated[str, typer.Option(help="The share group.")],
    accept: Annotated[bool, typer.Option("--accept", help="The record is done (the default).")] = False,
    release: Annotated[bool, typer.Option("--release", help="The record may be delivered again.")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="The record will never be delivered again.")] = False,
    max_records: Annotated[int | None, typer.Option("--max", min=1, help="Stop after so many records.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0, help="Stop when none came for so many seconds.")] = None,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Takes records as a member of a share group and acknowledges each."""
    answer = _one_answer(accept, release, reject)
    typer.echo("partition\toffset\tdelivery\tkey\tvalue")
    count = run_consume(
        bootstrap,
        topic,
        group,
        answer,
        limit=max_records,
        timeout_s=timeout,
        show=lambda message: typer.echo(_line(message)),
        properties=read_properties(command_config),
    )
    word = {AcknowledgeType.ACCEPT: "accepted", AcknowledgeType.RELEASE: "released", AcknowledgeType.REJECT: "rejected"}
    typer.echo(f"{word[answer]} {count} records", err=True)


def _one_answer(accept: bool, release: bool, reject: bool) -> AcknowledgeType:
    if accept + release + reject > 1:
        raise CommandFailed("give only one of --accept, --release and --reject", BAD_USE)
    if release:
        return AcknowledgeType.RELEASE
    return AcknowledgeType.REJECT if reject else AcknowledgeType.ACCEPT


def _line(message: Message) -> str:
    """Partition, offset, delivery count, key and value, separated by tabs."""
    cells = (
        message.partition(),
        message.offset(),
        message.delivery_count(),
        _text(message.key()),
        _text(message.value()),
    )
    return "\t".join(map(str, cells))


def _text(raw: str | bytes | None) -> str:
    if raw is None:
        return ""
    return raw if isinstance(raw, str) else raw.decode(errors="backslashreplace")


@groups_app.command("list")
def groups_list(bootstrap: Bootstrap = LOCAL, command_config: CommandConfig = None) -> None:
    """Shows all groups."""
    show_groups(bootstrap, Console(), read_properties(command_config))


@groups_app.command("describe")
def groups_describe(group: str, bootstrap: Bootstrap = LOCAL, command_config: CommandConfig = None) -> None:
    """Shows a share group's state, epoch, members and their assignments."""
    show_group(bootstrap, group, Console(), read_properties(command_config))


def main() -> None:
    """Runs the command; a failure is one line on stderr and an exit code."""
    try:
        app()
    except CommandFailed as failure:
        typer.echo(f"kshare: {failure}", err=True)
        sys.exit(failure.exit_code)
    except BrokenPipeError:
        sys.exit(1)
