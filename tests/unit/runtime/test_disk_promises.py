"""What RocksDB notices of a disk that puts a block at the place of another; `memory_store` relies on it.

Flipped, missing and zeroed bytes are in `test_damaged_store`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from kshare_core.errors import StorageFailure
from kshare_runtime.ports import Write
from kshare_runtime.rocks_store import RocksStore

KEY_BYTES = 6
INTERNAL_KEY_BYTES = KEY_BYTES + 8
ROWS = [(bytes([number]) + b"00000", b"%06d " % number * 30) for number in range(100)]
"""No key shares anything with the one before it, so that all blocks but the last have one size."""


def block_starts(table: bytes) -> list[int]:
    """Places at which a block may begin: those of all entries."""
    value_bytes = len(ROWS[0][1])
    head = bytes([0, INTERNAL_KEY_BYTES, value_bytes & 0x7F | 0x80, value_bytes >> 7])
    return [place for place in range(len(table)) if table.startswith(head, place)]


def read_all(path: Path) -> list[tuple[bytes, bytes]] | None:
    """None where it is refused, also if only one of the reads is."""
    try:
        store = RocksStore(path)
    except StorageFailure:
        return None
    try:
        found = [(key, value) for key, _ in ROWS if (value := store.get("rows", key)) is not None]
        return found if found == list(store.scan("rows", b"")) else [*found, (b"scan", b"another")]
    except StorageFailure:
        return None
    finally:
        store.close()


def test_a_block_at_the_place_of_another_is_refused(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "whole")
    store.write([Write("rows", key, value) for key, value in ROWS])
    store.close()
    assert read_all(tmp_path / "whole") == ROWS
    (table,) = [path for path in (tmp_path / "whole").glob("*.sst") if ROWS[0][1] in path.read_bytes()]
    data = table.read_bytes()
    starts = block_starts(data)
    assert starts[0] == 0 and len(starts) > 5
    refused = 0
    for number, start in enumerate(starts[1:-1]):
        length = start
        if data[length : length + 4] != data[:4] or 2 * length > len(data):
            continue
        path = shutil.copytree(tmp_path / "whole", tmp_path / f"swapped-{number}")
        (path / table.name).write_bytes(data[length : 2 * length] + data[:length] + data[2 * length :])
        found = read_all(path)
        assert found is None or found == ROWS
        refused += found is None
    assert refused
