"""`kshare up` as tests start it: a process of its own on a folder, with pids of its roles to kill.

On the kafka engine (`support.clusters.engines`) it is `kshare attach`, in front of a cluster that starts at the first
start and ends with the block.

with KshareCluster(folder) as cluster:
    cluster.bootstrap        # "127.0.0.1:PORT"
    cluster.role_pid("leader")
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from support.clusters.engines import TestEngine, engine_of_tests, upstream_of
from support.clusters.role_logs import Failure, failures_in
from support.environment.free_ports import free_port
from support.kafka.existing_cluster import ExistingCluster

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
COMMAND = Path(sys.executable).parent / "kshare"
ROLES = ("coordinator", "share_coordinator", "leader", "gateway")
COUNTS = {
    "coordinator": "kshare.coordinators",
    "share_coordinator": "kshare.share.coordinators",
    "leader": "kshare.leaders",
}
"""The configs with the number of nodes of each role; there is one gateway."""


class ClusterNode(NamedTuple):
    """One node of a cluster."""

    role: str
    node_id: int

    @property
    def name(self) -> str:
        """As `kshare up` names its process: leader, leader-2."""
        name = self.role.replace("_", "-")
        return name if self.node_id == 1 else f"{name}-{self.node_id}"


def children_of(pid: int) -> list[int]:
    """Pids of the direct children of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found.extend(int(child) for child in (task / "children").read_text().split())
    return found


def command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []


class KshareCluster:
    """Starts on entry and is ready for clients then; stops with SIGTERM on exit and checks that it stopped cleanly."""

    def __init__(
        self,
        folder: Path,
        settings: dict[str, str] | None = None,
        *,
        single_process: bool = False,
        port: int | None = None,
        host: str = "127.0.0.1",
        variables: dict[str, str] | None = None,
        options: Sequence[str] = (),
        command: Path = COMMAND,
        engine: TestEngine | None = None,
        upstream: ExistingCluster | None = None,
        has_own_process_group: bool = False,
    ) -> None:
        """`variables` are added to the environment, which the roles inherit; `options` to the command line.

        `command` is the `kshare` that is started: another checkout's, where two versions are compared. `engine` None:
        that of this run of tests. `upstream` is a cluster that runs already, and goes on after the block.

        With `has_own_process_group` Ctrl-C at a terminal does not reach the cluster: its user has to stop it.

        Where `settings` have listeners, the one at `port` is `bootstrap`.
        """
        self._options = options
        self._command = command
        self.folder = folder
        self._variables = variables or {}
        self.port = port or free_port()
        self.bootstrap = f"{host}:{self.port}"
        self.ready_file = folder / "ready"
        self.log = folder / "kshare-up.log"
        self._settings = settings or {}
        self._single_process = single_process
        self._process_group = 0 if has_own_process_group else None
        self._engine = engine or engine_of_tests()
        self.upstream = upstream
        """The cluster behind kshare; None with the embedded engine, and before the first start."""
        self._is_mine = False
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> KshareCluster:
        if self._engine is not TestEngine.EMBEDDED and self.upstream is None:
            self._is_mine = True
            self.upstream = upstream_of(self.folder / "upstream", self._settings).__enter__()
        try:
            self.start()
        except BaseException:
            if self._process is not None:
                self.stop()
            if self.upstream is not None and self._is_mine:
                self.upstream.__exit__(None, None, None)
            raise
        return self

    @property
    def records_bootstrap(self) -> str:
        """Where producers and ordinary consumers connect: here, or at the cluster behind a kshare in mode share."""
        if self.upstream is not None and self._engine is TestEngine.KAFKA_SHARE:
            return self.upstream.bootstrap
        return self.bootstrap

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            code = self.stop()
        finally:
            if self.upstream is not None and self._is_mine:
                self.upstream.__exit__(None, None, None)
        if kind is None:
            assert code == 0, f"kshare up ended with {code}:\n{self.log_text()[-4000:]}"

    @property
    def data_dir(self) -> Path:
        return self.folder / "data"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ready_file.unlink(missing_ok=True)
        config = self.folder / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
        if self.upstream is None:
            command = [str(self._command), "up"]
        else:
            command = [str(self._command), "attach", self.upstream.bootstrap, "--mode", self._engine.mode]
        command += ["--data-dir", str(self.data_dir)]
        if "listeners" not in self._settings:
            command += ["--listen", self.bootstrap]
        command += ["--ready-file", str(self.ready_file), "--config", str(config)]
        if self._single_process:
            command.append("--single-process")
        elif self._command == COMMAND:  # another checkout's may have no such option, and makes one for each node
            command += ["--processes", str(len(self.nodes))]
        command += self._options
        with self.log.open("ab") as output:
            environment = {**os.environ, **self._variables}
            self._process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, process_group=self._process_group
            )
        self.wait_ready()

    @property
    def nodes(self) -> list[ClusterNode]:
        """All of them, in the order in which they start."""
        return [
            ClusterNode(role, number + 1)
            for role in ROLES
            for number in range(int(self._settings.get(COUNTS.get(role, ""), "1")))
        ]

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self.ready_file.exists():
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"kshare up did not become ready:\n{self.log_text()[-4000:]}")
            time.sleep(0.05)

    def stop(self) -> int:
        """Stops with SIGTERM; the exit code, or -9 where it had to be killed."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return -9

    def kill_everything(self) -> None:
        """kill -9 of the supervisor and of every role at once."""
        pids = [self.pid, *children_of(self.pid)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while any(command_line(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.02)

    def pids(self) -> dict[str, int]:
        """Those of the nodes that have a process of their own now, by name."""
        children = {child: command_line(child) for child in children_of(self.pid)}
        return {
            node.name: child
            for node in self.nodes
            for child, words in children.items()
            if f"kshare_{node.role}" in words and ("--node-id", str(node.node_id)) in pairwise(words)
        }

    def node_pid(self, node: ClusterNode) -> int:
        """The pid of a node; RuntimeError where none runs within the time to become ready."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while (pid := self.pids().get(node.name)) is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no process of {node.name} below {self.pid}")
            time.sleep(0.05)
        return pid

    def role_pid(self, role: str) -> int:
        """The pid of a role's newest process; RuntimeError where none runs within the time to become ready."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            for child in children_of(self.pid):
                if f"kshare_{role}" in command_line(child):
                    return child
            time.sleep(0.05)
        raise RuntimeError(f"no process of kshare_{role} below {self.pid}")

    def kill_role(self, role: str) -> int:
        """kill -9 of one role; its pid."""
        pid = self.role_pid(role)
        os.kill(pid, signal.SIGKILL)
        return pid

    @contextlib.contextmanager
    def paused(self, role: str | ClusterNode) -> Iterator[None]:
        """SIGSTOP of one role, or of one node, for the length of the block: alive, and silent."""
        pid = self.node_pid(role) if isinstance(role, ClusterNode) else self.role_pid(role)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def wait_until_gone(self, pid: int) -> None:
        """Returns when the supervisor has taken note of a killed process (it is no longer its child)."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while pid in children_of(self.pid):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{pid} was killed and is still there after {STOP_TIMEOUT_S} s")
            time.sleep(0.02)

    def wait_for_log(self, wanted: str, *, after: int = 0) -> str:
        """The log from position `after` on, once `wanted` is in it; RuntimeError where it does not come."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while wanted not in (found := self.log_text()[after:]):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{wanted!r} is not in the log:\n{found[-2000:]}")
            time.sleep(0.02)
        return found

    def failures(self) -> list[Failure]:
        """What the processes logged as failures so far."""
        return failures_in(self.log_text())

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""
