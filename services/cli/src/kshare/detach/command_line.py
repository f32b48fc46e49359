"""The options of `kshare detach`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kshare.command_options import TABLE, AsJson, Output, wants_json
from kshare.detach.command import Detachment, run_detachment
from kshare.endpoint import CONFIG_HELP, endpoint, named_by
from kshare.output import stdout_console


def detach(
    kshare: Annotated[
        str, typer.Option("--from", metavar="HOST:PORT", help="A gateway of the kshare in front of the cluster.")
    ],
    cluster: Annotated[
        str, typer.Option("--to", metavar="HOST:PORT", help="A broker of that cluster, with Kafka 4.2 or later.")
    ],
    group: Annotated[list[str] | None, typer.Option(help="A share group; repeatable. Default: all.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Set a start offset even if the cluster's group is already ahead.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be set, and change nothing.")] = False,
    from_config: Annotated[Path | None, typer.Option(help=CONFIG_HELP.format("--from"))] = None,
    to_config: Annotated[Path | None, typer.Option(help=CONFIG_HELP.format("--to"))] = None,
    output: Output = TABLE,
    as_json: AsJson = False,
) -> None:
    """Leaves kshare for Kafka's own share groups: they get the configs and start offsets that groups have at kshare.

    A group must have no members. Records that are finished above a start offset are delivered again; the command says
    how many. Nothing is changed at kshare.
    """
    detachment = Detachment(
        kshare=endpoint("--from", kshare, from_config),
        cluster=endpoint("--to", cluster, to_config),
        groups=group or [],
        may_go_back=overwrite,
    )
    with named_by("--from", "--to"):
        run_detachment(detachment, stdout_console(), dry_run=dry_run, as_json=wants_json(output, as_json))
