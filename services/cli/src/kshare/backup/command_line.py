"""The commands `kshare backup` and `kshare restore`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer


def backup(
    target: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="A new directory for the backup.")],
    data_dir: Annotated[Path, typer.Option(envvar="KSHARE_UP_DATA_DIR", help="The directory of a kshare up.")],
) -> None:
    """Copies the stores of all roles, while they serve or stopped, with a manifest and checksums."""
    from kshare.backup.create import create_backup

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that the copies are removed
    manifest = create_backup(data_dir, target, typer.echo)
    typer.echo(f"backup {target}: {len(manifest.stores)} stores of cluster {manifest.cluster_id}")


def restore(
    source: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="A backup of kshare backup.")],
    data_dir: Annotated[Path, typer.Option(envvar="KSHARE_UP_DATA_DIR", help="A new directory for kshare up.")],
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="STORE", help="Restore this store beside the others, such as leader-2. Repeatable."),
    ] = None,
    cluster_id: Annotated[str | None, typer.Option(help="Refuse a backup of another cluster.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Examine the backup, and change nothing.")] = False,
) -> None:
    """Puts the stores of a backup into a data directory; refuses one that has data, or stores of another cluster."""
    from kshare.backup.restore import restore_backup

    found = restore_backup(source, data_dir, only=only or [], cluster_id=cluster_id, dry_run=dry_run, show=typer.echo)
    done = "would be restored" if dry_run else "restored"
    typer.echo(f"cluster {found.cluster_id} as of {found.created} {done} to {data_dir}")
