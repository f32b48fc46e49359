"""Every role as a process of its own, several of a role, which a test stops with SIGTERM and starts again.

with RestartedRoles(folder, coordinators=1, share_coordinators=2, leaders=2, gateways=2) as cluster:
    cluster.bootstraps            # of the gateways
    cluster.roles["leader-2"].stop()

A role that is started again has its address and its data as before.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

from support.clusters.role_logs import Failure, failures_in
from support.environment.free_ports import free_port

READY_WITHIN_S = 60.0
STOPPED_WITHIN_S = 30.0


class RestartedRole:
    """One process."""

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.name = name
        self._ready_file = folder / f"{name}.ready"
        self._log = folder / f"{name}.log"
        self._command = [*command, "--ready-file", str(self._ready_file)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self._ready_file.unlink(missing_ok=True)
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=subprocess.STDOUT)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while not self._ready_file.exists():
            assert self.is_running and time.monotonic() < deadline, f"{self.name} is not ready:\n{self.log()[-4000:]}"
            time.sleep(0.02)

    def stop(self) -> None:
        """SIGTERM, and the end with exit code 0; AssertionError where it does not end so."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not stop:\n{self.log()[-4000:]}") from None
        assert code == 0, f"{self.name} ended with {code}:\n{self.log()[-4000:]}"

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """SIGSTOP for the length of the block: alive, and silent."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()
        self.wait_ready()

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""


class RestartedRoles:
    """A whole cluster; ready on entry, killed on exit."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str],
        *,
        coordinators: int = 1,
        share_coordinators: int = 2,
        leaders: int = 2,
        gateways: int = 2,
        started: int | None = None,
    ) -> None:
        """`started`: how many of each role run at first; None: all."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._config = folder / "server.properties"
        self._config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        coordinator_ports = [free_port() for _ in range(coordinators)]
        self.coordinators = ",".join(f"127.0.0.1:{port}" for port in coordinator_ports)
        """The addresses of all coordinators, whether they run or not."""
        self._started = started
        self.existing_cluster: str | None = None
        """Where producers and ordinary consumers connect, if not to the gateways."""
        self.bootstraps: list[str] = []
        self.roles: dict[str, RestartedRole] = {}
        """By name, as leader-2; in the order in which they are started."""
        self._first: list[RestartedRole] = []
        for node_id, port in enumerate(coordinator_ports, 1):
            self._add("coordinator", node_id, "--listen", f"127.0.0.1:{port}")
        for node_id in range(1, share_coordinators + 1):
            self._add("share_coordinator", node_id, "--listen", f"127.0.0.1:{free_port()}")
        for node_id in range(1, leaders + 1):
            self._add("leader", node_id, "--listen", f"127.0.0.1:{free_port()}")
        for node_id in range(1, gateways + 1):
            address = f"127.0.0.1:{free_port()}"
            self.bootstraps.append(address)
            self._add("gateway", node_id, "--client-listen", address)

    def _add(self, role: str, node_id: int, *options: str) -> None:
        name = f"{role.replace('_', '-')}-{node_id}"
        command = [sys.executable, "-m", f"kshare_{role}", "--node-id", str(node_id), *options]
        command += ["--data-dir", str(self._folder / name), "--config", str(self._config)]
        command += ["--coordinator-address", self.coordinators]
        self.roles[name] = RestartedRole(name, command, self._folder)
        if self._started is None or node_id <= self._started:
            self._first.append(self.roles[name])

    def __enter__(self) -> RestartedRoles:
        try:
            for role in self._first:
                role.start()
            for role in self._first:
                role.wait_ready()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()

    def failures(self) -> list[Failure]:
        """What the processes logged as failures so far."""
        return [failure for name, role in self.roles.items() for failure in failures_in(role.log(), name)]

    def _kill(self) -> None:
        for role in self.roles.values():
            if role.is_running:
                role.kill()
