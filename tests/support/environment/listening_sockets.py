"""Where the processes of a system listen, as the kernel tells it: TCP ports and Unix sockets."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

_LISTEN = "0A"
_ACCEPTS_CONNECTIONS = 0x10000


def listening_ports(pids: Iterable[int]) -> set[int]:
    """TCP ports, of any address, on which one of the processes listens."""
    found: set[int] = set()
    for pid in pids:
        inodes = _socket_inodes(pid)
        for table in ("tcp", "tcp6"):
            for line in _rows(pid, table):
                words = line.split()
                if words[3] == _LISTEN and words[9] in inodes:
                    found.add(int(words[1].rpartition(":")[2], 16))
    return found


def listening_unix_sockets(pids: Iterable[int]) -> set[str]:
    """Paths and abstract names (with @) on which one of the processes listens."""
    found: set[str] = set()
    for pid in pids:
        inodes = _socket_inodes(pid)
        for line in _rows(pid, "unix"):
            words = line.split()
            if words[6] in inodes and int(words[3], 16) & _ACCEPTS_CONNECTIONS:
                found.add(words[7] if len(words) > 7 else "")
    return found


def _rows(pid: int, table: str) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    return []


def _socket_inodes(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if match := re.fullmatch(r"socket:\[(\d+)\]", str(file.readlink())):
                    found.add(match.group(1))
    return found
