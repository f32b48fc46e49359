"""Consistent copies of all stores of a data directory, of a cluster that runs or is stopped.

Each store is copied by a RocksDB checkpoint, `backups/<name>` beside it: all of one moment, with every confirmed write.
The moments of several stores differ, and the order makes that harmless:

1. The coordinator's: what it does not know yet (a committed offset, a topic) is as of the backup.
2. Share coordinators': a state never knows more than the logs that are copied after it. An acknowledgement that was
   confirmed before the backup began is in it. One that was confirmed meanwhile may not be: as of the backup its record
   is unconfirmed, and is delivered again.
3. Leaders': records that are newer than the states are available ones.

A partition that moves between two of these moments could be in no copy. So the placement of all partitions is compared
before and after, and the copies are made anew where it changed.

A copy keeps the space of all tables that it links, so all copies are removed at the end, also when the command fails or
is interrupted. Those of a command that was killed, or of a node that completed its copy later than the command waited,
are removed by the next backup.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from kshare.addresses import Address, parse_address
from kshare.backup.stores import Store
from kshare.commands.state.coordinator_address import coordinator_address
from kshare.commands.state.coordinator_call import call_coordinator, call_one
from kshare.commands.state.role_network import local_role_address, why_no_response
from kshare.commands.state.state_store_place import back_up as back_up_share_coordinator
from kshare.failure import BAD_USE, CommandFailed
from kshare.up.data_directory import RUN
from kshare.up.plan import COORDINATOR, SHARE_COORDINATOR
from kshare_core.errors import KafkaError, StorageFailure
from kshare_rpc.generated.kshare.v1 import common_pb2
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import (
    BACK_UP_COORDINATOR,
    BACK_UP_LEADER,
    DESCRIBE_NODES,
    DESCRIBE_PARTITIONS,
    DESCRIBE_STATE_PARTITIONS,
)
from kshare_rpc.network import CallFailed
from kshare_runtime.rocks_store import is_open_elsewhere
from kshare_runtime.store_backups import BACKUPS_DIRECTORY, backup_directory
from kshare_runtime.store_backups import back_up as back_up_store

ATTEMPTS = 3
BACKUP_TIMEOUT_MS = 60_000
LOCK = "backup.lock"
"""A file of the data directory, which a `kshare backup` holds (flock)."""
_NAME = re.compile(r"copying-\d{8}T\d{6}-\d+-.+")


def copies_name(created: datetime) -> str:
    """The beginning of the names of all copies of this command."""
    return f"copying-{created:%Y%m%dT%H%M%S}-{os.getpid()}"


@contextmanager
def copied_stores(
    data_dir: Path, stores: Sequence[Store], name: str, show: Callable[[str], None]
) -> Iterator[tuple[list[Path], bool]]:
    """The directories of the copies, removed afterwards, and whether the cluster runs. CommandFailed.

    `name` is one of `copies_name`.
    """
    with ExitStack() as held:
        _lock_backups(data_dir, held)
        _remove(_leftovers(stores))
        is_running = not _is_locked_now(data_dir, held)
        open_ones = [store.name for store in stores if is_open_elsewhere(store.path)]
        if not is_running and open_ones:
            text = f"{', '.join(open_ones)} of {data_dir} run without a kshare up: stop them, or use volume snapshots"
            raise CommandFailed(text, BAD_USE)
        if is_running and len(open_ones) < len(stores):
            stopped = ", ".join(store.name for store in stores if store.name not in open_ones)
            text = f"{stopped} of {data_dir} do not run, and others do: start or stop all of them"
            raise CommandFailed(text, BAD_USE)
        if is_running:
            yield _copies_while_running(data_dir, stores, name, show, held), True
        else:
            yield _copies(stores, name, _stopped, held), False


def _lock_backups(data_dir: Path, held: ExitStack) -> None:
    """Excludes other backups of the data directory until `held` ends. CommandFailed."""
    lock = os.open(data_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    held.callback(os.close, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CommandFailed(f"another kshare backup of {data_dir} runs") from None


def _leftovers(stores: Sequence[Store]) -> list[Path]:
    """The copies of earlier commands; while the lock is held, none of them runs."""
    folders = {store.path.parent / BACKUPS_DIRECTORY for store in stores}
    return [path for folder in folders if folder.exists() for path in folder.iterdir() if _NAME.fullmatch(path.name)]


def _is_locked_now(data_dir: Path, held: ExitStack) -> bool:
    """Locks the data directory until `held` ends, so that no `kshare up` starts meanwhile; False where one runs."""
    lock = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    held.callback(os.close, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _copies_while_running(
    data_dir: Path, stores: Sequence[Store], name: str, show: Callable[[str], None], held: ExitStack
) -> list[Path]:
    coordinator = coordinator_address(None, data_dir)
    for attempt in range(ATTEMPTS):
        before = _placement(coordinator)
        found = _copies(stores, f"{name}-{attempt}", _running, held)
        if _placement(coordinator) == before:
            return found
        _remove(found)
        show("nodes or partitions changed while the stores were copied; they are copied again")
    raise CommandFailed(
        f"nodes or partitions changed during each of {ATTEMPTS} copies: run the command again when no node starts, "
        "stops or drains and no partition moves (kshare nodes, kshare partitions list, kshare state partitions)"
    )


def _placement(coordinator: Address) -> tuple[bytes, ...]:
    """Which node in which incarnation has which partition; refuses while a partition moves or has no owner."""
    nodes = call_coordinator(coordinator, DESCRIBE_NODES, pb.DescribeNodesRequest())
    if nodes.cluster_problems:
        problems = "; ".join(nodes.cluster_problems)
        raise CommandFailed(f"the cluster cannot be backed up while parts of it are away: {problems}")
    partitions = call_coordinator(coordinator, DESCRIBE_PARTITIONS, pb.DescribePartitionsRequest())
    states = call_coordinator(coordinator, DESCRIBE_STATE_PARTITIONS, pb.DescribeStatePartitionsRequest())
    for answer in (nodes, partitions, states):
        if answer.error_code:
            raise CommandFailed(f"the coordinator failed to describe the cluster: {answer.error_message}")
    return (
        *(each.node.SerializeToString(deterministic=True) for each in nodes.nodes),
        partitions.SerializeToString(deterministic=True),
        states.SerializeToString(deterministic=True),
    )


def _copies(stores: Sequence[Store], name: str, copy: Callable[[Store, str], Path], held: ExitStack) -> list[Path]:
    """In the order of the stores; each is removed when `held` ends, also one whose node did not answer."""
    found: list[Path] = []
    for store in stores:
        own_name = f"{name}-{store.name}"  # stores of one folder have one folder of backups
        held.callback(_remove, [backup_directory(store.path, own_name)])
        found.append(copy(store, own_name))
    return found


def _stopped(store: Store, name: str) -> Path:
    try:
        opened = store.opened()
    except StorageFailure as failure:
        raise CommandFailed(str(failure)) from None
    try:
        return back_up_store(opened, name)
    except KafkaError as error:
        raise CommandFailed(f"cannot copy {store.name}: {error.message}") from None
    finally:
        opened.close()


def _running(store: Store, name: str) -> Path:
    address = _address_of(store)
    if store.role == SHARE_COORDINATOR:
        return back_up_share_coordinator(address, name)
    method = BACK_UP_COORDINATOR if store.role == COORDINATOR else BACK_UP_LEADER
    request = common_pb2.BackUpStoreRequest(name=name)
    answer = call_one(address, method, request, timeout_ms=BACKUP_TIMEOUT_MS)
    if isinstance(answer, CallFailed):
        raise CommandFailed(f"{store.name} at {address} did not answer: {why_no_response(address, answer)}")
    if answer.error_code:
        raise CommandFailed(f"{store.name} at {address} failed to copy its store: {answer.error_message}")
    return Path(answer.directory)


def _address_of(store: Store) -> Address:
    ready_file = store.data_dir / RUN / f"{store.name}.ready"
    try:
        lines = ready_file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise CommandFailed(f"cannot read the address of {store.name} from {ready_file}: {error}") from None
    found = dict(line.partition("=")[::2] for line in lines)
    return local_role_address(parse_address(found.get("address", ""), what=f"address= in {ready_file}"), store.data_dir)


def _remove(copies: Sequence[Path]) -> None:
    for copy in copies:
        shutil.rmtree(copy, ignore_errors=True)
