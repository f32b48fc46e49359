"""What a soak counts as descriptors."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

from soak.samples import descriptors


def test_tables_on_disk_are_no_descriptors_that_leak_and_removed_ones_are(tmp_path: Path) -> None:
    before = descriptors(os.getpid())
    with ExitStack() as opened:
        for number in range(20):
            opened.enter_context((tmp_path / f"{number:06}.sst").open("wb"))
        assert descriptors(os.getpid()) == before
        (tmp_path / "000007.sst").unlink()
        assert descriptors(os.getpid()) == before + 1
        opened.enter_context(socket.socket())
        opened.enter_context((tmp_path / "000020.log").open("wb"))
        assert descriptors(os.getpid()) == before + 3
    assert descriptors(os.getpid()) == before


def test_a_process_that_has_ended_has_none() -> None:
    assert descriptors(1 << 22) == 0
