"""The options of `kshare migrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kshare.command_options import TABLE, AsJson, Output, wants_json
from kshare.endpoint import CONFIG_HELP, endpoint, named_by
from kshare.failure import BAD_USE, CommandFailed
from kshare.migrate.command import Migration, run_migration
from kshare.output import stdout_console
from kshare_upstream.topics import HIGHEST_REPLICATION_FACTOR


def migrate(
    old: Annotated[str, typer.Option("--from", metavar="HOST:PORT", help="A gateway of the kshare to leave.")],
    new: Annotated[str, typer.Option("--to", metavar="HOST:PORT", help="A broker of the existing cluster.")],
    kshare: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The kshare attached to that cluster; it gets the groups' configs."),
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="A topic to create; repeatable. Default: all that are not internal.")
    ] = None,
    group: Annotated[list[str] | None, typer.Option(help="A share group; repeatable. Default: all.")] = None,
    replication_factor: Annotated[
        int, typer.Option(min=1, help="Replicas of new topics; at most as many as there are brokers.")
    ] = HIGHEST_REPLICATION_FACTOR,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Show where each topic and group is, and change nothing.")
    ] = False,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="End when no group has a record left at --from, and none is produced there."),
    ] = False,
    from_config: Annotated[Path | None, typer.Option(help=CONFIG_HELP.format("--from"))] = None,
    to_config: Annotated[Path | None, typer.Option(help=CONFIG_HELP.format("--to"))] = None,
    kshare_config: Annotated[Path | None, typer.Option(help=CONFIG_HELP.format("--kshare"))] = None,
    output: Output = TABLE,
    as_json: AsJson = False,
) -> None:
    """Moves from a kshare with its own logs to an existing cluster: topics, configs of groups, and the steps between.

    Run it as often as you like: it does what is missing, and says what is next. Records and states are not copied, so
    producers switch first, and consumers once their group has no record left. Nothing is changed at --from.
    """
    if dry_run and (status or wait):
        raise CommandFailed("--dry-run cannot be combined with --status or --wait", BAD_USE)
    migration = Migration(
        old=endpoint("--from", old, from_config),
        new=endpoint("--to", new, to_config),
        kshare=None if kshare is None else endpoint("--kshare", kshare, kshare_config),
        topics=topic or [],
        groups=group or [],
        replicas=replication_factor,
    )
    with named_by("--from", "--to", *(["--kshare"] if kshare is not None else [])):
        run_migration(
            migration, stdout_console(), only_look=dry_run or status, wait=wait, as_json=wants_json(output, as_json)
        )
