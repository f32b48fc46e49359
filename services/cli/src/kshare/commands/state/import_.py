"""`kshare state import`: writes an export into the store of a stopped share coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

from kshare.commands.state.state_store_place import StorePlace, stopped_store
from kshare.failure import BAD_USE, CommandFailed
from kshare_core.errors import StorageFailure
from kshare_share_coordinator.maintenance.exports import BadExport, Export, read_export
from kshare_share_coordinator.maintenance.imports import ImportPlan, StateImport


def import_state(
    place: StorePlace,
    source: Path,
    show: Callable[[str], None],
    *,
    replace: Collection[int],
    overwrite: bool,
    dry_run: bool,
) -> None:
    """Checks the export, prints the plan, and carries it out unless it is a dry run; CommandFailed."""
    export = _read(source)
    if export.left_out:
        show(f"{source} is incomplete: {export.left_out} share-partitions could not be read when it was made")
    if dry_run and not (place.directory / "CURRENT").exists():
        show(f"{place.directory} has no store yet")
        show(f"dry run: would import {len(export.snapshots)} share-partitions")
        return
    with stopped_store(place, read_only=dry_run) as store:
        try:
            state_import = StateImport(store, export, _now_ms())
            plan = state_import.plan(replace, overwrite=overwrite)
            if dry_run:
                show(f"dry run: would {_text(plan)}")
                return
            state_import.carry_out(plan)
        except BadExport as problem:
            raise CommandFailed(f"{source}: {problem}", BAD_USE) from None
        except StorageFailure as failure:
            raise CommandFailed(f"the import is incomplete: {failure}") from None
    show(_text(plan))


def _read(source: Path) -> Export:
    try:
        with source.open(encoding="utf-8") as lines:
            return read_export(lines, _now_ms())
    except (BadExport, OSError, UnicodeDecodeError) as problem:
        raise CommandFailed(f"{source}: {problem}", BAD_USE) from None


def _text(plan: ImportPlan) -> str:
    parts = [f"import {len(plan.snapshots)} share-partitions"]
    if plan.emptied:
        parts.insert(0, f"empty state partitions {', '.join(map(str, plan.emptied))}")
    if plan.overwritten:
        parts.append(f"overwrite {len(plan.overwritten)} of them")
    if plan.skipped:
        parts.append(f"skip {plan.skipped} of other state partitions")
    return ", ".join(parts)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
