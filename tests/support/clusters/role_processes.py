"""Roles as processes of their own, each with options of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from support.environment.free_ports import free_port

START_TIMEOUT_S = 60.0


class RoleProcess:
    """`python -m kshare_<role>`; `address` is where it serves gRPC."""

    def __init__(
        self,
        role: str,
        data_dir: Path,
        *,
        coordinator_address: str | None = None,
        node_id: int = 1,
        config: Path | None = None,
    ) -> None:
        self._config = config
        self.role = role
        self.data_dir = data_dir
        self.address = f"127.0.0.1:{free_port()}"
        self._coordinator_address = coordinator_address or self.address
        self._node_id = node_id
        self._ready_file = data_dir / f"{role}.ready"
        self.log = data_dir / f"{role}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Starts without waiting; when, by time.monotonic()."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._ready_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", f"kshare_{self.role}", "--node-id", str(self._node_id)]
        if self.role == "gateway":
            command += ["--client-listen", self.address]
        else:
            command += ["--data-dir", str(self.data_dir), "--listen", self.address]
        if self._config is not None:
            command += ["--config", str(self._config)]
        command += ["--coordinator-address", self._coordinator_address, "--ready-file", str(self._ready_file)]
        with self.log.open("ab") as output:
            started = time.monotonic()
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        return started

    def wait_ready(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready_file.exists():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()[-4000:]
            time.sleep(0.02)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def running(role: str, data_dir: Path, **options: str) -> Iterator[RoleProcess]:
    """A role that is ready; killed at the end."""
    process = RoleProcess(role, data_dir, **options)  # type: ignore[arg-type]
    process.start()
    try:
        process.wait_ready()
        yield process
    finally:
        process.kill()
