"""The options and the output of `kshare state …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

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
from kshare.commands.give_up import give_up_share_coordinator
from kshare.commands.state.backup import back_up_state, default_name
from kshare.commands.state.coordinator_address import coordinator_address
from kshare.commands.state.drain import drain_share_coordinator, undo_drain
from kshare.commands.state.dump import dump_group_state
from kshare.commands.state.export import export_state
from kshare.commands.state.import_ import import_state
from kshare.commands.state.partitions import show_state_partitions
from kshare.commands.state.state_store_place import node_address, store_place
from kshare.commands.state.verify import verify_state
from kshare.output import progress, show_json, show_outcome, stdout_console
from kshare.watch import every, show_watched
from kshare_core.whole_numbers import LARGEST_INT

state_app = typer.Typer(help="Placement, content and maintenance of share-group state.", no_args_is_help=True)

Node = Annotated[int, typer.Argument(metavar="NODE", min=0, max=LARGEST_INT, help="The share coordinator's node id.")]


@state_app.command("partitions")
def state_partitions(
    output: Output = TABLE,
    as_json: AsJson = False,
    watch: Watch = False,
    interval: Interval = WATCH_INTERVAL_S,
    coordinator: Coordinator = None,
    data_dir: DataDir = None,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Shows the owner of each state partition, and reassignments."""
    address = coordinator_address(coordinator, data_dir, bootstrap, read_properties(command_config))
    is_json = wants_json(output, as_json)
    show_watched(lambda console: show_state_partitions(address, console, as_json=is_json), every(watch, interval))


@state_app.command("drain")
def state_drain(
    node: Node,
    undo: Annotated[bool, typer.Option("--undo", help="Allow state partitions there again.")] = False,
    timeout_s: Annotated[float, typer.Option(min=0, help="Fail after waiting for so many seconds.")] = 300.0,
    output: Output = TABLE,
    as_json: AsJson = False,
    coordinator: Coordinator = None,
    data_dir: DataDir = None,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Moves all state partitions off a share coordinator; returns when it can be removed for good."""
    is_json = wants_json(output, as_json)
    address = coordinator_address(coordinator, data_dir, bootstrap, read_properties(command_config))
    if undo:
        undo_drain(address, node)
        text = f"state partitions can be placed at share coordinator {node} again"
        show_outcome(text, {"share_coordinator": node, "drained": False}, as_json=is_json)
        return
    drain_share_coordinator(address, node, timeout_s=timeout_s, show=progress(as_json=is_json))
    text = f"share coordinator {node} is empty and can be stopped"
    show_outcome(text, {"share_coordinator": node, "drained": True}, as_json=is_json)


@state_app.command("give-up")
def state_give_up(
    node: Node,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Do it: the listed state is lost.")] = False,
    output: Output = TABLE,
    as_json: AsJson = False,
    coordinator: Coordinator = None,
    data_dir: DataDir = None,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Gives up a share coordinator that is lost for good: its groups restart at the first record."""
    is_json = wants_json(output, as_json)
    address = coordinator_address(coordinator, data_dir, bootstrap, read_properties(command_config))
    give_up_share_coordinator(address, node, is_unsafe=unsafe, show=progress(as_json=is_json))
    if is_json:
        show_json(stdout_console(), {"share_coordinator": node, "given_up": True})


@state_app.command("dump")
def state_dump(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The share group.")],
    topic: Annotated[str | None, typer.Option(help="Only share-partitions of this topic.")] = None,
    output: Output = TABLE,
    as_json: AsJson = False,
    runs: Annotated[int, typer.Option(min=0, help="Runs listed for each share-partition; 0: all.")] = 20,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Shows a share group's stored state: offsets, epochs, record states and delivery counts."""
    properties = read_properties(command_config)
    reach(bootstrap, properties)
    console = Console()  # strips are as wide as the terminal, or 80 columns
    dump_group_state(
        bootstrap,
        group,
        topic,
        as_json=wants_json(output, as_json),
        shown_runs=runs,
        console=console,
        properties=properties,
    )


StoreDir = Annotated[
    Path,
    typer.Option(
        "--data-dir",
        envvar="KSHARE_DATA_DIR",
        help="The directory of a kshare up, of a share coordinator, or of a backup.",
    ),
]
NodeId = Annotated[int, typer.Option("--node", min=1, help="The share coordinator's node id in a kshare up.")]
ShareCoordinator = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="The share coordinator that serves the store, if it is not one of a kshare up."
    ),
]


@state_app.command("backup")
def state_backup(
    name: Annotated[str | None, typer.Argument(help="Default: the current UTC time.")] = None,
    data_dir: DataDir = None,
    node: NodeId = 1,
    share_coordinator: ShareCoordinator = None,
) -> None:
    """Copies a share coordinator's store to backups/NAME beside it while it is served, and verifies the copy."""
    place = None if data_dir is None else store_place(data_dir, node)
    back_up_state(node_address(share_coordinator, place), name or default_name(), typer.echo)


@state_app.command("verify")
def state_verify(
    data_dir: StoreDir,
    node: NodeId = 1,
    share_coordinator: ShareCoordinator = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Also compare the states with the logs of this cluster."),
    ] = None,
    command_config: CommandConfig = None,
) -> None:
    """Verifies the checksums of all rows of a store, stopped or serving, and lists states that were truncated because a
    log lost records; exit code 1 for damage, or for a state that disagrees with its log (--bootstrap)."""
    verify_state(
        store_place(data_dir, node),
        share_coordinator,
        typer.echo,
        bootstrap=bootstrap,
        properties=read_properties(command_config),
    )


@state_app.command("export")
def state_export(
    data_dir: StoreDir,
    output: Annotated[Path | None, typer.Option(help="A new file. Default: stdout.")] = None,
    node: NodeId = 1,
    share_coordinator: ShareCoordinator = None,
) -> None:
    """Exports all share-partitions of a store as JSON lines; exit code 1 if some could not be read."""
    export_state(store_place(data_dir, node), share_coordinator, output, lambda text: typer.echo(text, err=True))


@state_app.command("import")
def state_import(
    file: Annotated[Path, typer.Argument(help="A file of kshare state export.")],
    data_dir: StoreDir,
    replace: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Empty state partition N, damaged or not, and import only it; repeatable."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing states.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the import and change nothing.")] = False,
    node: NodeId = 1,
) -> None:
    """Imports an export into the store of a stopped share coordinator; exit code 2 if it does not fit."""
    import_state(
        store_place(data_dir, node), file, typer.echo, replace=replace or [], overwrite=overwrite, dry_run=dry_run
    )
