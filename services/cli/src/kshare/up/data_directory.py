"""The directory of `kshare up` and `kshare attach`: a lock, the roles' ports, stores, logs and ready files.

lock                 held (flock) while a `kshare up` runs on the directory; its content is the process id
ports.json           the ports of the last run, which are used again
coordinator/ …       the stores of the roles
coordinator-2/ …     the store of the second node of a role
logs/<role>.log      the output of the roles; `.log.1` is the older part
run/<role>.ready     written by a role when it can serve
certificates/        the roles' certificates, if clients authenticate or need permissions
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from kshare.failure import BAD_USE, CommandFailed

PRIVATE = 0o700
"""Records, credentials and keys are in the directory. One that exists keeps its mode."""
RUN = "run"
CERTIFICATES = "certificates"
ADMINISTRATOR_PROPERTIES = Path(CERTIFICATES, "administrator.properties")
COORDINATOR_READY_FILE = Path(RUN, "coordinator.ready")


def is_in_use(path: Path) -> bool:
    """Whether a `kshare up` runs on the directory."""
    try:
        with (path / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


class DataDirectory:
    """An opened and locked directory; CommandFailed if it cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        try:
            self.path.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            for name in ("logs", RUN):
                (self.path / name).mkdir(exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise CommandFailed(f"cannot use data directory {path}: {error}", BAD_USE) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(self._lock, 32, 0).decode(errors="replace").strip()
            os.close(self._lock)
            raise CommandFailed(
                f"data directory {path} is in use by another kshare up or attach (pid {owner})", BAD_USE
            ) from None
        os.truncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        for stale in (self.path / RUN).glob("*.ready"):
            stale.unlink()

    def log_file(self, role: str) -> Path:
        return self.path / "logs" / f"{role}.log"

    def ready_file(self, role: str) -> Path:
        return self.path / RUN / f"{role}.ready"

    def remembered_ports(self) -> dict[str, int]:
        """Ports of the last run by role; empty without a last run, or if the file cannot be read."""
        try:
            found = json.loads((self.path / "ports.json").read_text())
        except (OSError, ValueError):
            return {}
        if not isinstance(found, dict):
            return {}
        return {str(role): port for role, port in found.items() if isinstance(port, int)}

    def remember_ports(self, ports: dict[str, int]) -> None:
        write_atomically(self.path / "ports.json", json.dumps(ports, indent=2) + "\n")

    def close(self) -> None:
        """Releases the lock."""
        os.close(self._lock)


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file: readers see the old file or the complete new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as error:
        raise CommandFailed(f"cannot write {path}: {error}", BAD_USE) from None
