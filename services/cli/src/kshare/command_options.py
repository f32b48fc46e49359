"""Options that several commands share, with the environment variables that set them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

BOOTSTRAP_VARIABLE = "KSHARE_BOOTSTRAP"
COMMAND_CONFIG_VARIABLE = "KSHARE_COMMAND_CONFIG"
COORDINATOR_VARIABLE = "KSHARE_COORDINATOR"
DATA_DIR_VARIABLE = "KSHARE_DATA_DIR"
PROFILE_VARIABLE = "KSHARE_PROFILE"

LOCAL = "localhost:9092"
"""The default listen address of `kshare up`."""
ATTACHED = "localhost:19092"
"""The default listen address of `kshare attach`; the cluster may have Kafka's port on this machine."""

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "--bootstrap-server",
        metavar="HOST:PORT[,…]",
        envvar=BOOTSTRAP_VARIABLE,
        help="One or more gateways of the cluster.",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        envvar=COMMAND_CONFIG_VARIABLE,
        help="A property file for the connection, in librdkafka's names: security.protocol=ssl, ssl.ca.location, ...",
    ),
]
Coordinator = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        envvar=COORDINATOR_VARIABLE,
        help="RPC addresses of all coordinators, separated by commas. Default: read from the gateway.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        envvar=DATA_DIR_VARIABLE, help="The directory of a kshare up or kshare attach; its coordinator is used."
    ),
]
Processes = Annotated[
    str,
    typer.Option(
        metavar="auto|1|N",
        help="Processes for all nodes: 1, or N, one for each node. auto is 1 on a machine with at most two processors, "
        "unless a role has several nodes, and N otherwise.",
    ),
]
ConsoleListen = Annotated[
    str | None,
    typer.Option("--console", metavar="HOST:PORT", help="Serves the web console there, such as 127.0.0.1:8080."),
]
ConsoleAdmin = Annotated[
    bool,
    typer.Option(
        "--console-admin", help="Allow release, reject, redrive, drain and altering of group configs in the console."
    ),
]
ConsoleClientConfig = Annotated[
    Path | None,
    typer.Option(help="How the console connects to a listener with TLS: a file as --command-config, without a user."),
]
MetricsListen = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="Serves /metrics: each process at the next port; one process has one for all roles."
    ),
]
SingleProcess = Annotated[bool, typer.Option("--single-process", help="The same as --processes 1.")]


class OutputFormat(StrEnum):
    """What a command prints on stdout: text and tables for people, or JSON for programs."""

    TABLE = "table"
    JSON = "json"


TABLE = OutputFormat.TABLE
Output = Annotated[
    OutputFormat, typer.Option("--output", "-o", envvar="KSHARE_OUTPUT", help="Print tables, or JSON for programs.")
]
AsJson = Annotated[bool, typer.Option("--json", help="The same as --output json.")]

WATCH_INTERVAL_S = 2.0
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Repeat the view until Ctrl-C.")]
LONGEST_INTERVAL_S = 86_400.0
Interval = Annotated[
    float,
    typer.Option(min=0.1, max=LONGEST_INTERVAL_S, metavar="SECONDS", help="With --watch: the time between two views."),
]


def wants_json(output: OutputFormat, as_json: bool) -> bool:
    """Whether one of the two options asks for JSON."""
    return as_json or output is OutputFormat.JSON
