"""Each row of a leader's log that names a place in a file: the batch is there, whatever happened to the disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from crc32c import crc32c

from kshare_leader.engine.embedded import STORE_NAME
from kshare_leader.log import keys
from kshare_runtime.large_values.files import pointer_of
from kshare_runtime.memory_store import MemoryDisk
from support.simulation.evidence import Violation


def batches_are_there(disks: Mapping[str, MemoryDisk]) -> Iterator[Violation]:
    """By the name of the host. It reads the disks themselves, so faults of reads do not matter."""
    for host, disk in disks.items():
        copied = disk.copy()
        if STORE_NAME not in copied.folders:
            continue
        files = copied.folders[STORE_NAME].contents()
        log = copied.stores.get(STORE_NAME, {}).get(keys.LOG)
        for key, row in {} if log is None else log.values.items():
            pointer = pointer_of(row)
            if pointer is None:
                continue
            prefix = key[: keys.PARTITION_PREFIX_BYTES]
            data = [
                data for name, data in files.get(prefix, {}).items() if int(name.partition("-")[0]) == pointer.number
            ]
            end = pointer.position + pointer.length
            found = data[0][pointer.position : end] if data else b""
            if len(found) != pointer.length or crc32c(found) != pointer.crc:
                text = f"{host}: the row {key.hex()} needs bytes {pointer.position} to {end} of file {pointer.number}"
                yield Violation("a stored batch is not there", text)
