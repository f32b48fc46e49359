"""The options of `kshare top`, `kshare doctor` and `kshare client-config`, which are about a whole cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from kshare.client_properties import read_properties
from kshare.command_options import (
    LOCAL,
    LONGEST_INTERVAL_S,
    TABLE,
    WATCH_INTERVAL_S,
    AsJson,
    Bootstrap,
    CommandConfig,
    Coordinator,
    DataDir,
    Output,
    wants_json,
)
from kshare.commands.cluster.client_config import Language, Target, program
from kshare.output import show_json, stdout_console
from kshare.watch import show_watched

SHOWN_ROWS = 20


def top(
    interval: Annotated[
        float, typer.Option(min=0.1, max=LONGEST_INTERVAL_S, metavar="SECONDS", help="The time between two views.")
    ] = WATCH_INTERVAL_S,
    rows: Annotated[int, typer.Option(min=1, help="The most rows of each table.")] = SHOWN_ROWS,
    output: Output = TABLE,
    as_json: AsJson = False,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Shows live which groups are behind and which topics get records, until Ctrl-C."""
    from kshare.commands.cluster.top import Top

    view = Top(bootstrap, read_properties(command_config), limit=rows, as_json=wants_json(output, as_json))
    show_watched(view.show, interval)


def doctor(
    output: Output = TABLE,
    as_json: AsJson = False,
    coordinator: Coordinator = None,
    data_dir: DataDir = None,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Examines the set-up from this machine: what is wrong, and what to do; exit code 1 for a problem."""
    from kshare.commands.cluster.doctor import SetUp, Severity, examine, show_findings

    findings = examine(SetUp(bootstrap, read_properties(command_config), coordinator, data_dir))
    show_findings(findings, stdout_console(), as_json=wants_json(output, as_json))
    if any(finding.severity is Severity.PROBLEM for finding in findings):
        raise typer.Exit(1)


def client_config(
    language: Annotated[Language, typer.Argument(help="The client's language.")],
    topic: Annotated[str, typer.Option(help="The topic.")] = "orders",
    group: Annotated[str, typer.Option(help="The share group.")] = "billing",
    output: Output = TABLE,
    as_json: AsJson = False,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Prints a program for this cluster: a worker of a share group in Python, Java or Go, a producer in Node."""
    text = program(language, Target(bootstrap, read_properties(command_config), topic, group))
    if wants_json(output, as_json):
        show_json(stdout_console(), {"language": str(language), "program": text})
    else:
        typer.echo(text, nl=False)
