"""The commands of `kshare` whose modules are imported when they are used; importing all takes longer than most of them.

`kshare --help` imports all, since each says in its own words what it does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_group

from kshare.command_examples import epilog_of

if TYPE_CHECKING:
    from typer import _click as click  # Typer's own copy, which has no public name


class Place(NamedTuple):
    """Where a command is: a Typer application of several commands, or a function that is one command."""

    module: str
    name: str


PLACES = {
    "produce": Place("kshare.commands.records_command_line", "produce"),
    "consume": Place("kshare.commands.records_command_line", "consume"),
    "peek": Place("kshare.commands.records_command_line", "peek"),
    "top": Place("kshare.commands.cluster.command_line", "top"),
    "doctor": Place("kshare.commands.cluster.command_line", "doctor"),
    "client-config": Place("kshare.commands.cluster.command_line", "client_config"),
    "audit": Place("kshare.commands.audit", "audit"),
    "redrive": Place("kshare.commands.redrive", "redrive"),
    "report": Place("kshare.commands.report", "report"),
    "migrate": Place("kshare.migrate.command_line", "migrate"),
    "backup": Place("kshare.backup.command_line", "backup"),
    "restore": Place("kshare.backup.command_line", "restore"),
    "detach": Place("kshare.detach.command_line", "detach"),
    "topics": Place("kshare.commands.topics_command_line", "topics_app"),
    "brokers": Place("kshare.commands.cluster.brokers", "brokers_app"),
    "groups": Place("kshare.commands.groups.command_line", "groups_app"),
    "partitions": Place("kshare.commands.partitions_command_line", "partitions_app"),
    "state": Place("kshare.commands.state.command_line", "state_app"),
}
"""By the command's name."""


class CommandsOnDemand(TyperGroup):
    """A group that has, beside the commands that are registered with it, those of PLACES."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in PLACES and cmd_name not in self.commands:
            self.commands[cmd_name] = _imported(cmd_name, PLACES[cmd_name])
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _give_examples(command, cmd_name)
        return command

    def list_commands(self, ctx: click.Context) -> list[str]:
        for name in PLACES:
            self.get_command(ctx, name)
        return super().list_commands(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """What is no command is compared with the names of all."""
        if args and self.get_command(ctx, args[0]) is None:
            self.list_commands(ctx)
        return super().resolve_command(ctx, args)


def _give_examples(command: click.Command, words: str) -> None:
    """Sets the examples at the end of the help of the command and of all below it."""
    command.epilog = epilog_of(words)
    if isinstance(command, TyperGroup):
        for name, below in command.commands.items():
            _give_examples(below, f"{words} {name}")


def _imported(name: str, place: Place) -> click.Command:
    found = getattr(import_module(place.module), place.name)
    around = typer.Typer()
    if isinstance(found, typer.Typer):
        around.add_typer(found, name=name)
    else:
        around.command(name)(found)
    return get_group(around).commands[name]
