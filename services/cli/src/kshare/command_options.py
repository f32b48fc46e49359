"""Options that many commands share, with the variables that stand for them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LOCAL = "localhost:9092"
"""Where `kshare up` listens when nothing else is said."""

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "--bootstrap-server",
        metavar="HOST:PORT",
        envvar="KSHARE_BOOTSTRAP",
        help="A gateway of the cluster.",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        envvar="KSHARE_COMMAND_CONFIG",
        help="A property file for the connection, in librdkafka's names: security.protocol=ssl, ssl.ca.location, ...",
    ),
]
Coordinator = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        envvar="KSHARE_COORDINATOR",
        help="The coordinator's address for roles, if not the one that the gateway names; of several all, with commas.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(envvar="KSHARE_DATA_DIR", help="The directory of a kshare up, to find its coordinator there."),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
