"""The options of `kshare topics …`."""

from __future__ import annotations

from typing import Annotated

import typer

from kshare.client_properties import read_properties
from kshare.command_options import (
    LOCAL,
    TABLE,
    WATCH_INTERVAL_S,
    AsJson,
    Bootstrap,
    CommandConfig,
    Interval,
    Output,
    Watch,
    wants_json,
)
from kshare.commands.topic_description import show_topic
from kshare.commands.topics import create_topic, delete_topic, show_topics
from kshare.output import show_outcome
from kshare.watch import every, show_watched
from kshare_core.whole_numbers import LARGEST_INT

topics_app = typer.Typer(help="Create, list, describe and delete topics.", no_args_is_help=True)


@topics_app.command("create")
def topics_create(
    name: str,
    partitions: Annotated[
        int | None, typer.Option(min=1, max=LARGEST_INT, help="Default: the broker's num.partitions.")
    ] = None,
    config: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A topic config; repeatable.")] = None,
    output: Output = TABLE,
    as_json: AsJson = False,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Creates a topic."""
    create_topic(bootstrap, name, partitions, config or [], read_properties(command_config))
    show_outcome(f"created topic {name}", {"topic": name, "created": True}, as_json=wants_json(output, as_json))


@topics_app.command("list")
def topics_list(
    output: Output = TABLE,
    as_json: AsJson = False,
    watch: Watch = False,
    interval: Interval = WATCH_INTERVAL_S,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Shows all topics."""
    properties, is_json = read_properties(command_config), wants_json(output, as_json)
    show_watched(lambda console: show_topics(bootstrap, console, properties, as_json=is_json), every(watch, interval))


@topics_app.command("describe")
def topics_describe(
    name: str,
    output: Output = TABLE,
    as_json: AsJson = False,
    watch: Watch = False,
    interval: Interval = WATCH_INTERVAL_S,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Shows a topic's partitions with offsets, its configs, and the lag of share groups."""
    properties, is_json = read_properties(command_config), wants_json(output, as_json)
    show_watched(
        lambda console: show_topic(bootstrap, name, console, properties, as_json=is_json), every(watch, interval)
    )


@topics_app.command("delete")
def topics_delete(
    name: str,
    output: Output = TABLE,
    as_json: AsJson = False,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Deletes a topic and its records."""
    delete_topic(bootstrap, name, read_properties(command_config))
    show_outcome(f"deleted topic {name}", {"topic": name, "deleted": True}, as_json=wants_json(output, as_json))
