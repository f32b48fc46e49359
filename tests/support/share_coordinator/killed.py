"""A share coordinator's store as a kill -9 leaves it, and the states that were confirmed.

As a program (`DIRECTORY SEED`) this file carries out operations on a store and kills itself.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from kshare_core.identifiers import SharePartitionKey
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import KeyValueStore
from kshare_runtime.rocks_store import RocksStore
from kshare_share_coordinator.machine.operations import Operation
from kshare_share_coordinator.machine.share_group_offset import ShareGroupOffset
from support.runtime.damaged_files import make_small_files, needed_logs
from support.share_coordinator.shell import (
    STATE_PARTITION_COUNT,
    TOPIC_ID,
    ShareCoordinatorShell,
    delete,
    initialize,
    read,
    write,
)

STORE = "share-coordinator"
KEYS = [SharePartitionKey("orders", TOPIC_ID, number) for number in range(12)]
TURNS = 120
LIVE_STATES = 6
States = dict[SharePartitionKey, ShareGroupOffset | None]


def turns_of(seed: int) -> list[list[Operation]]:
    """Random writes, now and then a deletion, a new state epoch or a new leader."""
    choices = random.Random(seed)
    return [[_operation(choices, seed) for _ in range(choices.randrange(1, 4))] for _ in range(TURNS)]


def _operation(choices: random.Random, seed: int) -> Operation:
    key, kind = choices.choice(KEYS), choices.random()
    if kind < 0.1:
        return delete(key)
    if kind < 0.3:
        return initialize(key, state_epoch=seed + 1, start_offset=0)
    if kind < 0.4:
        return read(key, leader_epoch=choices.randrange(seed + 2))
    first = choices.randrange(3_000)
    runs = [(first + 10 * run, first + 10 * run + 3, 2, choices.randrange(1, 4)) for run in range(choices.randrange(9))]
    return write(key, *runs, state_epoch=seed + 1, leader_epoch=seed + 1, start_offset=choices.randrange(300))


def carry_out(store: KeyValueStore, seed: int) -> None:
    shell = ShareCoordinatorShell(store, updates_per_snapshot=20)
    if shell.state_store.state_partition_count() is None:
        shell.state_store.write_state_partition_count(STATE_PARTITION_COUNT)
    for turn in turns_of(seed):
        shell.turn(*turn)


def killed_share_coordinator(directory: Path) -> tuple[Path, States]:
    """The directory of a store with more than one log that is needed, and the state of each share-partition.

    When a log is no longer needed depends on RocksDB's threads, so the number of rounds differs from run to run. A
    round that ends with fewer than LIVE_STATES states is followed by another.
    """
    disk = MemoryDisk()
    for seed in range(30):
        process = subprocess.run([sys.executable, __file__, str(directory), str(seed)], check=False)
        assert process.returncode == -signal.SIGKILL
        confirmed = disk.open_store(STORE)
        carry_out(confirmed, seed)
        shell = ShareCoordinatorShell(confirmed)
        states = {key: shell.run(read(key)).state for key in KEYS}
        confirmed.close()
        are_many = sum(state is not None for state in states.values()) >= LIVE_STATES
        if seed > 2 and are_many and len(needed_logs(directory / STORE)) > 1:
            return directory / STORE, states
    raise AssertionError("no kill left more than one log and many states")


if __name__ == "__main__":
    make_small_files()
    carry_out(RocksStore(Path(sys.argv[1]) / STORE, isolate_damage=True), int(sys.argv[2]))
    os.kill(os.getpid(), signal.SIGKILL)
