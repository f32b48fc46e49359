"""The place of a share coordinator's store, and access to it: directly, or by a copy while the node serves it.

RocksDB's files can be read by another process only while no process writes them. A store that is being served is
therefore first copied by its own node (BackupState). The copy consists of hard links to the same table files.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kshare.addresses import Address, parse_address
from kshare.commands.state.role_network import local_role_address, role_network, why_no_response
from kshare.failure import BAD_USE, CommandFailed
from kshare.up.plan import SHARE_COORDINATOR, PlannedNode
from kshare_core.errors import StorageFailure
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import BACKUP_STATE
from kshare_rpc.network import CallFailed
from kshare_runtime.rocks_store import RocksStore, is_open_elsewhere
from kshare_share_coordinator.checksummed_store import ChecksummedStore
from kshare_share_coordinator.maintenance.opening import STORE_NAME

BACKUP_TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A store's directory, and the ready file in which its node writes its address."""

    directory: Path
    ready_file: Path


def store_place(data_dir: Path, node_id: int) -> StorePlace:
    """The store in `data_dir`: the directory of a `kshare up`, of one share coordinator, a store or a backup."""
    if (data_dir / "CURRENT").exists():
        return StorePlace(data_dir, data_dir / "ready")
    node = PlannedNode(SHARE_COORDINATOR, node_id)
    return StorePlace(node.data_dir(data_dir) / STORE_NAME, data_dir / "run" / f"{node.name}.ready")


def node_address(given: str | None, place: StorePlace | None) -> Address:
    """`--share-coordinator HOST:PORT`, else the address in the node's ready file; CommandFailed without either."""
    if given is not None:
        return parse_address(given, what="--share-coordinator")
    if place is not None and place.ready_file.exists():
        lines = place.ready_file.read_text(encoding="utf-8").splitlines()
        found = dict(line.partition("=")[::2] for line in lines)
        address = parse_address(found.get("address", ""), what=f"address= in {place.ready_file}")
        return local_role_address(address, place.ready_file.parents[1])
    where = "" if place is None else f" that serves {place.directory}"
    raise CommandFailed(
        f"the address of the share coordinator{where} is missing: give --share-coordinator HOST:PORT, or --data-dir",
        BAD_USE,
    )


def back_up(address: Address, name: str) -> Path:
    """Makes a backup; returns its directory on the node's machine. CommandFailed."""

    async def call() -> messages.BackupStateResponse:
        channel = role_network(address).connect(str(address))
        try:
            request = messages.BackupStateRequest(name=name)
            answer, _ = await channel.call(BACKUP_STATE, request, timeout_ms=BACKUP_TIMEOUT_MS)
        finally:
            await channel.close()
        return answer

    try:
        answer = asyncio.run(call())
    except CallFailed as failure:
        raise CommandFailed(
            f"the share coordinator at {address} did not answer: {why_no_response(address, failure)}"
        ) from None
    if answer.error_code:
        raise CommandFailed(f"the share coordinator at {address} failed to make a backup: {answer.error_message}")
    return Path(answer.directory)


@contextmanager
def readable_store(place: StorePlace, given_address: str | None) -> Iterator[ChecksummedStore]:
    """The store, opened for reading, or a copy of it that is removed afterwards; CommandFailed."""
    if not is_open_elsewhere(place.directory):
        with _opened(place.directory) as store:
            yield store
        return
    copy = back_up(node_address(given_address, place), f"for-reading-{os.getpid()}")
    try:
        with _opened(copy) as store:
            yield store
    finally:
        shutil.rmtree(copy, ignore_errors=True)


@contextmanager
def stopped_store(place: StorePlace, *, read_only: bool) -> Iterator[ChecksummedStore]:
    """The store of a stopped share coordinator, created if it is missing and `read_only` is False. CommandFailed."""
    if is_open_elsewhere(place.directory):
        raise CommandFailed(f"{place.directory} is in use; stop its share coordinator first", BAD_USE)
    try:
        store = ChecksummedStore(RocksStore(place.directory, isolate_damage=True, read_only=read_only))
    except StorageFailure as failure:
        raise CommandFailed(f"{failure}", BAD_USE) from None
    try:
        yield store
    finally:
        store.close()


@contextmanager
def _opened(directory: Path) -> Iterator[ChecksummedStore]:
    try:
        store = ChecksummedStore(RocksStore(directory, isolate_damage=True, read_only=True))
    except StorageFailure as failure:
        raise CommandFailed(str(failure)) from None
    try:
        yield store
    finally:
        store.close()
