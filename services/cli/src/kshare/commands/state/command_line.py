"""The options of `kshare state …`, and what its commands print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kshare.commands.state.coordinator_address import coordinator_address
from kshare.commands.state.drain import drain_share_coordinator, undo_drain
from kshare.commands.state.dump import dump_group_state
from kshare.commands.state.partitions import show_state_partitions

state_app = typer.Typer(help="Where share-group state lies, and what is in it.", no_args_is_help=True)

Coordinator = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", envvar="KSHARE_COORDINATOR", help="The coordinator's address for roles."),
]
DataDir = Annotated[
    Path | None,
    typer.Option(envvar="KSHARE_DATA_DIR", help="The directory of a kshare up, to find its coordinator."),
]


@state_app.command("partitions")
def state_partitions(coordinator: Coordinator = None, data_dir: DataDir = None) -> None:
    """Shows which share coordinator owns which state partition, and what moves."""
    show_state_partitions(coordinator_address(coordinator, data_dir), Console())


@state_app.command("drain")
def state_drain(
    node: Annotated[int, typer.Argument(metavar="NODE", min=0, help="The share coordinator's node id.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let it have state partitions again.")] = False,
    timeout_s: Annotated[float, typer.Option(min=0, help="Give up waiting after so many seconds.")] = 300.0,
    coordinator: Coordinator = None,
    data_dir: DataDir = None,
) -> None:
    """Moves all state partitions off a share coordinator; ends when it can be stopped for good."""
    address = coordinator_address(coordinator, data_dir)
    if undo:
        undo_drain(address, node)
        typer.echo(f"share coordinator {node} may have state partitions again")
        return
    drain_share_coordinator(address, node, timeout_s=timeout_s, show=typer.echo)
    typer.echo(f"share coordinator {node} is empty and can be stopped")


@state_app.command("dump")
def state_dump(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The share group.")],
    topic: Annotated[str | None, typer.Option(help="Only its share-partitions of this topic.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
    runs: Annotated[int, typer.Option(min=0, help="Runs listed for each share-partition; 0: all.")] = 20,
    bootstrap: Annotated[
        str,
        typer.Option("--bootstrap-server", "--bootstrap", metavar="HOST:PORT", help="A gateway of the cluster."),
    ] = "localhost:9092",
) -> None:
    """Explains what is stored about a share group: offsets, epochs, states and delivery counts."""
    dump_group_state(bootstrap, group, topic, as_json=as_json, shown_runs=runs, console=Console())
