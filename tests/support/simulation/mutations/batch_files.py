"""Planted bugs of the files in which batches lie beside a leader's store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kshare_core.errors import StorageFailure
from kshare_runtime.large_values.files import ValueFile, ValueFiles
from kshare_runtime.large_values.store import ValueFileStore
from support.simulation.mutations.mutation import Patch, planted
from support.simulation.mutations.planted_bug import Focus, PlantedBug, only_faults
from support.simulation.plan import Plan

NOT_THERE = ("a stored batch is not there",)


def with_batch_files(plan: Plan) -> Plan:
    return replace(plan, shape=replace(plan.shape, has_batch_files=True))


def _begin_rows_at_once(begin_sync: Callable[[ValueFileStore], None]) -> Callable[[ValueFileStore], None]:
    def changed(store: ValueFileStore) -> None:
        store._group = list(store._staged)
        store._begin_group()

    return changed


def _keep_the_last_file_only(keep: Callable[..., None]) -> Callable[..., None]:
    def changed(files: ValueFiles, prefix: bytes, first_key: bytes | None, last_key: bytes | None) -> None:
        keep(files, prefix, last_key, last_key)

    return changed


def _forget_the_failure(fail: Callable[..., StorageFailure]) -> Callable[..., StorageFailure]:
    def changed(store: ValueFileStore, file: ValueFile, error: OSError) -> StorageFailure:
        failure = fail(store, file, error)
        for staged in store._staged:
            staged.failure = None
        return failure

    return changed


def _write_over_the_last_value(append: Callable[..., Any]) -> Callable[..., Any]:
    """As if the end of a file were where its last value begins."""

    def changed(files: ValueFiles, prefix: bytes, rows: Any) -> Any:
        pointers, file = append(files, prefix, rows)
        if len(pointers) == 1 and pointers[0].position:
            file.length = pointers[0].position
        return pointers, file

    return changed


PLANTED = (
    PlantedBug(
        name="a batch is written over the one before",
        mutation=planted(Patch(ValueFiles, "append", _write_over_the_last_value)),
        rules=NOT_THERE,
        focus=Focus("batches in files", (with_batch_files,)),
        seed=2,
    ),
    PlantedBug(
        name="the row of a batch is written before its file is synced",
        mutation=planted(Patch(ValueFileStore, "_begin_sync", _begin_rows_at_once)),
        rules=NOT_THERE,
        focus=Focus(
            "batches in files, power fails", (with_batch_files, only_faults("power-cut", "power-loss", "crash"))
        ),
        seed=2,
    ),
    PlantedBug(
        name="a file is removed with the first of its batches",
        mutation=planted(Patch(ValueFiles, "keep", _keep_the_last_file_only)),
        rules=NOT_THERE,
        focus=Focus("batches in files", (with_batch_files,)),
        seed=5,
    ),
    PlantedBug(
        name="a file whose sync failed is taken for durable",
        mutation=planted(Patch(ValueFileStore, "_fail", _forget_the_failure)),
        rules=NOT_THERE,
        focus=Focus("batches in files, disks fail", (with_batch_files, only_faults("disk-failure", "crash"))),
        seed=11,
    ),
)
