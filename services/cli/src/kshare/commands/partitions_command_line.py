"""The options and the output of `kshare partitions …`."""

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
    Coordinator,
    DataDir,
    Interval,
    Output,
    Watch,
    wants_json,
)
from kshare.commands.give_up import give_up_leader
from kshare.commands.partitions import (
    cancel_moves,
    describe_partitions,
    drain_leader,
    move_partitions,
    parse_partitions,
    show_partitions,
    undo_drain_of_leader,
    wait_for_moves,
)
from kshare.commands.rebalance import by_receiver, moves_listing, plan_moves
from kshare.commands.state.coordinator_address import coordinator_address
from kshare.failure import BAD_USE, CommandFailed
from kshare.output import progress, show, show_json, show_outcome, stdout_console
from kshare.watch import every, show_watched
from kshare_core.whole_numbers import LARGEST_INT

partitions_app = typer.Typer(help="List, move, spread and drain topic partitions of leaders.", no_args_is_help=True)

Node = Annotated[int, typer.Argument(metavar="NODE", min=0, max=LARGEST_INT, help="The leader's node id.")]
Timeout = Annotated[float, typer.Option(min=0, help="Fail after waiting for so many seconds.")]


@partitions_app.command("list")
def partitions_list(
    topics: Annotated[list[str] | None, typer.Argument(help="Default: all topics.")] = None,
    output: Output = TABLE,
    as_json: AsJson = False,
    watch: Watch = False,
    interval: Interval = WATCH_INTERVAL_S,
    coordinator: Coordinator = None,
    data_dir: DataDir = None,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Shows each partition's leader and reassignment, and each leader's partition count."""
    address = coordinator_address(coordinator, data_dir, bootstrap, read_properties(command_config))
    is_json = wants_json(output, as_json)
    show_watched(
        lambda console: show_partitions(address, topics or [], console, as_json=is_json), every(watch, interval)
    )


@partitions_app.command("move")
def partitions_move(
    partitions: Annotated[str, typer.Argument(metavar="TOPIC:PARTITION[,…]", help="The partitions.")],
    to: Annotated[
        int | None, typer.Option("--to", metavar="NODE", min=0, max=LARGEST_INT, help="The new leader's node id.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return once the new leader serves them.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel moves in progress.")] = False,
    timeout_s: Timeout = 300.0,
    output: Output = TABLE,
    as_json: AsJson = False,
    coordinator: Coordinator = None,
    data_dir: DataDir = None,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Moves partitions to another leader while clients continue."""
    named = parse_partitions(partitions)
    if cancel is (to is not None):
        raise CommandFailed("give either --to NODE, the new leader, or --cancel", BAD_USE)
    is_json = wants_json(output, as_json)
    address = coordinator_address(coordinator, data_dir, bootstrap, read_properties(command_config))
    if to is None:
        cancel_moves(address, named)
        text = f"cancelled the moves of {len(named)} partitions"
        show_outcome(text, {"partitions": len(named), "cancelled": True}, as_json=is_json)
        return
    move_partitions(address, named, to)
    if not wait:
        text = f"{len(named)} partitions are moving to leader {to}"
        show_outcome(text, {"partitions": len(named), "to_leader": to, "complete": False}, as_json=is_json)
        return
    wait_for_moves(address, named, to, timeout_s=timeout_s, show=progress(as_json=is_json))
    text = f"moved {len(named)} partitions to leader {to}"
    show_outcome(text, {"partitions": len(named), "to_leader": to, "complete": True}, as_json=is_json)


@partitions_app.command("drain")
def partitions_drain(
    node: Node,
    undo: Annotated[bool, typer.Option("--undo", help="Allow partitions there again.")] = False,
    timeout_s: Timeout = 300.0,
    output: Output = TABLE,
    as_json: AsJson = False,
    coordinator: Coordinator = None,
    data_dir: DataDir = None,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Moves all partitions off a leader; returns when it can be removed for good."""
    is_json = wants_json(output, as_json)
    address = coordinator_address(coordinator, data_dir, bootstrap, read_properties(command_config))
    if undo:
        undo_drain_of_leader(address, node)
        text = f"partitions can be placed at leader {node} again"
        show_outcome(text, {"leader": node, "drained": False}, as_json=is_json)
        return
    drain_leader(address, node, timeout_s=timeout_s, show=progress(as_json=is_json))
    show_outcome(f"leader {node} is empty and can be stopped", {"leader": node, "drained": True}, as_json=is_json)


@partitions_app.command("rebalance")
def partitions_rebalance(
    topics: Annotated[list[str] | None, typer.Argument(help="Move only partitions of these. Default: all.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the moves, and change nothing.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return once the new leaders serve them.")] = False,
    timeout_s: Timeout = 300.0,
    output: Output = TABLE,
    as_json: AsJson = False,
    coordinator: Coordinator = None,
    data_dir: DataDir = None,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Spreads partitions over the live leaders while clients continue: their numbers differ by at most one then."""
    is_json = wants_json(output, as_json)
    address = coordinator_address(coordinator, data_dir, bootstrap, read_properties(command_config))
    moves = plan_moves(describe_partitions(address, []), topics or [])
    tell = progress(as_json=is_json)
    if not dry_run:
        for to, named in by_receiver(moves).items():
            move_partitions(address, named, to)
        if wait:
            for to, named in by_receiver(moves).items():
                wait_for_moves(address, named, to, timeout_s=timeout_s, show=tell)
    state = "planned" if dry_run else "moved" if wait else "moving"
    show(stdout_console(), moves_listing(moves, state), as_json=is_json)
    if dry_run and not is_json:
        typer.echo("nothing was changed (--dry-run)")


@partitions_app.command("give-up")
def partitions_give_up(
    node: Node,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Do it: the listed records are lost.")] = False,
    output: Output = TABLE,
    as_json: AsJson = False,
    coordinator: Coordinator = None,
    data_dir: DataDir = None,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Gives up a leader that is lost for good: its partitions get live leaders and empty logs."""
    is_json = wants_json(output, as_json)
    address = coordinator_address(coordinator, data_dir, bootstrap, read_properties(command_config))
    give_up_leader(address, node, is_unsafe=unsafe, show=progress(as_json=is_json))
    if is_json:
        show_json(stdout_console(), {"leader": node, "given_up": True})
