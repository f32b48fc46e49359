"""`kshare state export`: writes a store's share-partitions as JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from kshare.commands.state.state_store_place import StorePlace, readable_store
from kshare.failure import BAD_USE, CommandFailed
from kshare_core.errors import StorageFailure
from kshare_share_coordinator.maintenance.exports import StateExport


def export_state(
    place: StorePlace, given_address: str | None, output: Path | None, show: Callable[[str], None]
) -> None:
    """Writes the export to a file or to stdout; CommandFailed if something had to be left out."""
    with readable_store(place, given_address) as store:
        export = StateExport(store)
        try:
            if output is None:
                for line in export.lines():
                    sys.stdout.write(line + "\n")
            else:
                with output.open("x", encoding="utf-8") as file:
                    file.writelines(line + "\n" for line in export.lines())
        except FileExistsError:
            raise CommandFailed(f"{output} already exists", BAD_USE) from None
        except (StorageFailure, OSError) as failure:
            raise CommandFailed(f"the export is incomplete: {failure}") from None
    show(f"exported {export.share_partitions} share-partitions")
    for problem in export.problems:
        show(f"left out: {problem}")
    if export.problems:
        raise CommandFailed(f"{len(export.problems)} share-partitions could not be read and are not in the export")
