"""The highest node epoch of a leader: when it is written, and what a restart finds."""

from __future__ import annotations

from kshare_leader.engine.registered_epoch import RegisteredEpoch
from kshare_leader.log import keys
from kshare_runtime.checksummed_rows import ChecksummedRows
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import Write


def test_the_highest_epoch_is_kept() -> None:
    reports: list[str] = []
    store = MemoryDisk().open_store("leader")
    epoch = RegisteredEpoch(store, report=reports.append)
    assert epoch.highest() == 0
    for node_epoch in (7, 25, 21):
        epoch.note(node_epoch)
    assert epoch.highest() == RegisteredEpoch(store, report=reports.append).highest() == 25
    assert reports == []


def test_an_epoch_that_could_not_be_written_is_written_later_and_reported_once() -> None:
    reports: list[str] = []
    disk = MemoryDisk()
    store = disk.open_store("leader")
    epoch = RegisteredEpoch(store, report=reports.append)
    disk.fail_next_writes(2)
    epoch.note(7)
    epoch.note(7)
    assert epoch.highest() == 0 and len(reports) == 1 and "No space left" in reports[0]
    epoch.note(7)
    assert RegisteredEpoch(store, report=reports.append).highest() == 7


def test_a_damaged_row_is_reported_and_replaced() -> None:
    reports: list[str] = []
    below = MemoryDisk().open_store("leader")
    store = ChecksummedRows(below, plain_families=[keys.LOG])
    RegisteredEpoch(store, report=reports.append).note(7)
    stored = below.get(keys.META, keys.NODE_EPOCH_KEY)
    assert stored is not None
    below.write([Write(keys.META, keys.NODE_EPOCH_KEY, stored[:-1] + bytes([stored[-1] ^ 1]))])
    epoch = RegisteredEpoch(store, report=reports.append)
    assert epoch.highest() == 0
    (report,) = reports
    assert "wrong checksum" in report
    epoch.note(5)
    assert RegisteredEpoch(store, report=reports.append).highest() == 5
