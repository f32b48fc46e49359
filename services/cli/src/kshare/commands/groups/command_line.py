"""The options and the output of `kshare groups …`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from kshare.client_properties import read_properties
from kshare.cluster_metadata import reach
from kshare.command_options import (
    LOCAL,
    TABLE,
    WATCH_INTERVAL_S,
    AsJson,
    Bootstrap,
    CommandConfig,
    Coordinator,
    DataDir,
    Interval,
    Output,
    Watch,
    wants_json,
)
from kshare.commands.groups.end_acquisitions import Ended, end_acquisitions, parse_offset_range
from kshare.commands.groups.group_requests import alter_group_configs, delete_group
from kshare.commands.groups.in_flight import show_in_flight
from kshare.commands.groups.listing import show_group, show_groups
from kshare.commands.groups.reset import Target, reset_offsets
from kshare.commands.offsets import EARLIEST, LATEST
from kshare.commands.resource_configs import GROUP, changes_text, check_unset, parse_changes
from kshare.commands.state.coordinator_address import coordinator_address
from kshare.endpoint import Endpoint
from kshare.failure import BAD_USE, CommandFailed
from kshare.output import Listing, Row, show, show_outcome, stdout_console
from kshare.watch import every, show_watched
from kshare_core.whole_numbers import LARGEST_INT

groups_app = typer.Typer(help="List, describe, configure, reset and delete groups.", no_args_is_help=True)

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.")]
EndedTopic = Annotated[str, typer.Option("--topic", help="The records' topic.")]
EndedPartition = Annotated[int, typer.Option("--partition", min=0, max=LARGEST_INT, help="The records' partition.")]
EndedOffsets = Annotated[str, typer.Option("--offsets", metavar="FIRST-LAST", help="Offsets, or a single one.")]
EndDryRun = Annotated[bool, typer.Option("--dry-run", help="Count the records and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask back.")]


@groups_app.command("list")
def groups_list(
    output: Output = TABLE,
    as_json: AsJson = False,
    watch: Watch = False,
    interval: Interval = WATCH_INTERVAL_S,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Shows all groups."""
    properties, is_json = read_properties(command_config), wants_json(output, as_json)
    show_watched(lambda console: show_groups(bootstrap, console, properties, as_json=is_json), every(watch, interval))


@groups_app.command("describe")
def groups_describe(
    group: Group,
    output: Output = TABLE,
    as_json: AsJson = False,
    watch: Watch = False,
    interval: Interval = WATCH_INTERVAL_S,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Shows a share group's state, epoch, members and their assignments."""
    properties, is_json = read_properties(command_config), wants_json(output, as_json)
    show_watched(
        lambda console: show_group(bootstrap, group, console, properties, as_json=is_json), every(watch, interval)
    )


@groups_app.command("in-flight")
def groups_in_flight(
    group: Group,
    topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None,
    held: Annotated[bool, typer.Option("--held", help="Only records that somebody holds.")] = False,
    output: Output = TABLE,
    as_json: AsJson = False,
    watch: Watch = False,
    interval: Interval = WATCH_INTERVAL_S,
    coordinator: Coordinator = None,
    data_dir: DataDir = None,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Shows who holds which records, for how long, and which records wait for another delivery."""
    properties = read_properties(command_config)
    address = coordinator_address(coordinator, data_dir, bootstrap, properties)
    is_json = wants_json(output, as_json)
    show_watched(
        lambda console: show_in_flight(
            bootstrap, address, group, topic, console, properties, held_only=held, as_json=is_json
        ),
        every(watch, interval),
    )


@groups_app.command("release")
def groups_release(
    group: Group,
    topic: EndedTopic,
    partition: EndedPartition,
    offsets: EndedOffsets,
    dry_run: EndDryRun = False,
    yes: Yes = False,
    output: Output = TABLE,
    as_json: AsJson = False,
    coordinator: Coordinator = None,
    data_dir: DataDir = None,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Releases records that members hold: others get them, as after a client's RELEASE."""
    properties = read_properties(command_config)
    address = coordinator_address(coordinator, data_dir, bootstrap, properties)
    ended = Ended(group, topic, partition, *parse_offset_range(offsets))
    is_json = wants_json(output, as_json)
    end_acquisitions(bootstrap, address, "release", ended, properties, dry_run=dry_run, yes=yes, as_json=is_json)


@groups_app.command("reject")
def groups_reject(
    group: Group,
    topic: EndedTopic,
    partition: EndedPartition,
    offsets: EndedOffsets,
    dry_run: EndDryRun = False,
    yes: Yes = False,
    output: Output = TABLE,
    as_json: AsJson = False,
    coordinator: Coordinator = None,
    data_dir: DataDir = None,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Rejects records that members hold: none is delivered again, and dead letters are written if the group has any."""
    properties = read_properties(command_config)
    address = coordinator_address(coordinator, data_dir, bootstrap, properties)
    ended = Ended(group, topic, partition, *parse_offset_range(offsets))
    is_json = wants_json(output, as_json)
    end_acquisitions(bootstrap, address, "reject", ended, properties, dry_run=dry_run, yes=yes, as_json=is_json)


@groups_app.command("set")
def groups_set(
    group: Group,
    configs: Annotated[list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="Group configs.")] = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Reset a config to its default; repeatable.")
    ] = None,
    output: Output = TABLE,
    as_json: AsJson = False,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Sets group configs, such as share.auto.offset.reset=earliest, even before the group exists."""
    changes = parse_changes(configs or (), unset or ())
    properties = read_properties(command_config)
    reach(bootstrap, properties)
    check_unset(Endpoint(bootstrap, properties), GROUP, group, changes)
    alter_group_configs(bootstrap, group, changes, properties)
    outcome: Row = {"group": group, "configs": dict(changes)}
    show_outcome(f"{changes_text(changes)} of group {group}", outcome, as_json=wants_json(output, as_json))


@groups_app.command("reset")
def groups_reset(
    group: Group,
    topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC[:0,1]", help="All or some partitions of a topic; repeatable.")
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All partitions for which the group has an offset.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record.")] = False,
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="To the end of the log, after the newest record.")
    ] = False,
    to_offset: Annotated[
        int | None, typer.Option(metavar="OFFSET", min=0, help="To this offset, limited to the log's offsets.")
    ] = None,
    to_datetime: Annotated[
        datetime | None, typer.Option(help="To the first record at or after this UTC time: 2026-11-21T18:00:00.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the new offsets and change nothing.")] = False,
    output: Output = TABLE,
    as_json: AsJson = False,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Resets a share group's start offsets; the group must not have members."""
    if bool(topic) == all_topics:
        raise CommandFailed("give either --topic TOPIC or --all-topics", BAD_USE)
    offsets = reset_offsets(
        bootstrap,
        group,
        topic or [],
        _target(to_earliest, to_latest, to_offset, to_datetime),
        all_topics=all_topics,
        dry_run=dry_run,
        note=lambda text: typer.echo(f"kshare: {text}", err=True),
        properties=read_properties(command_config),
    )
    rows: list[Row] = [
        {"topic": each.topic, "partition": each.partition, "before": _known(each.before), "start_offset": each.after}
        for each in offsets
    ]
    headings = {"topic": "topic", "partition": "partition", "before": "was", "start_offset": "new start offset"}
    show(stdout_console(), Listing("offsets", headings, rows), as_json=wants_json(output, as_json))
    if dry_run and not wants_json(output, as_json):
        typer.echo("nothing was changed (--dry-run)")


@groups_app.command("delete")
def groups_delete(
    group: Group,
    output: Output = TABLE,
    as_json: AsJson = False,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Deletes a group without members, and its offsets."""
    properties = read_properties(command_config)
    reach(bootstrap, properties)
    delete_group(bootstrap, group, properties)
    show_outcome(f"deleted group {group}", {"group": group, "deleted": True}, as_json=wants_json(output, as_json))


def _target(earliest: bool, latest: bool, offset: int | None, time: datetime | None) -> Target:
    if earliest + latest + (offset is not None) + (time is not None) != 1:
        raise CommandFailed("give exactly one of --to-earliest, --to-latest, --to-offset and --to-datetime", BAD_USE)
    if offset is not None:
        return Target(offset=offset)
    if time is not None:
        aware = time if time.tzinfo else time.replace(tzinfo=UTC)
        if aware < datetime.fromtimestamp(0, UTC):  # negative timestamps have other meanings in ListOffsets
            raise CommandFailed(f"--to-datetime must not be before 1970, found {time.isoformat()}", BAD_USE)
        return Target(timestamp_ms=round(aware.timestamp() * 1000))
    return Target(timestamp_ms=EARLIEST if earliest else LATEST)


def _known(offset: int) -> int | None:
    return None if offset < 0 else offset
