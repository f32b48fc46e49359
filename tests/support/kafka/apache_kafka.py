"""One Apache Kafka broker on loopback: 4.3.1 for benchmarks and tests that compare with Kafka, or another release.

with ApacheKafka(folder) as kafka:
    kafka.bootstrap  # "127.0.0.1:PORT"
"""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from support.environment.free_ports import free_port
from support.kafka.java import NEWEST, kafka_classpath, require_java
from support.kafka.java_programs import quick_flags

START_TIMEOUT_S = 60.0
HEAP = "1g"
"""What Kafka's scripts set."""


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Returns when something accepts connections; RuntimeError with the log's end when the process ends before."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"Kafka ended with {process.returncode}: {log.read_text()[-3000:]}")
        with socket.socket() as probe:
            probe.settimeout(0.2)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"Kafka did not listen on {port} within {START_TIMEOUT_S} s: {log.read_text()[-3000:]}")


def new_cluster_id() -> str:
    """A random id as `kafka-storage.sh random-uuid` makes it."""
    cluster_id = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
    return "A" + cluster_id[1:] if cluster_id.startswith("-") else cluster_id


class ApacheKafka:
    """A context manager; `settings` are added to server.properties, `flags` to those of Java.

    `quick`: for tests that start many brokers, none of which lives long; it starts in half of the time, and is slower
    after a while, so it is nothing to measure. At the block's end it is killed, because its data is thrown away.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, str] | None = None,
        *,
        heap: str = HEAP,
        quick: bool = False,
        flags: Sequence[str] = (),
        port: int | None = None,
        release: str = NEWEST,
        cluster_id: str | None = None,
    ) -> None:
        self._release = release
        self._cluster_id = cluster_id or new_cluster_id()
        self._folder = folder
        self._settings = settings or {}
        self._heap = heap
        self._quick = quick
        self._flags = flags
        self._port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.bootstrap = f"127.0.0.1:{self._port}"

    def __enter__(self) -> ApacheKafka:
        self._folder.mkdir(parents=True, exist_ok=True)
        properties = self._folder / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._properties().items()))
        subprocess.run(
            [*self._java("256m"), "kafka.tools.StorageTool", "format", "-t", self._cluster_id, "-c", str(properties)],
            check=True,
            capture_output=True,
        )
        self.launch()
        self.wait_until_up()
        return self

    def launch(self) -> None:
        """Starts the process on what it has stored, and does not wait for it."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [*self._java(self._heap, *self._flags), "kafka.Kafka", str(self._folder / "server.properties")],
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait_until_up(self) -> None:
        assert self._process is not None
        wait_for_port(self._port, self._process, self._log)

    @property
    def _log(self) -> Path:
        return self._folder / "kafka.log"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._quick:
            self.kill()
        else:
            self.stop()

    def stop(self) -> None:
        """Ends the process with SIGTERM, if it has not ended yet."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """Ends the process with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """SIGSTOP for the length of the block."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _java(self, heap: str, *flags: str) -> list[str]:
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        # The flags of Kafka's own start script.
        usual = ["-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35", f"-Xms{heap}"]
        chosen = quick_flags(self._release) if self._quick else usual
        return [require_java(), *chosen, f"-Xmx{heap}", *flags, quiet, "-cp", kafka_classpath(self._release)]

    def _properties(self) -> dict[str, str]:
        controller_port = free_port()
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": self._advertised(),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self._folder / "data"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self._settings,
        }

    def _advertised(self) -> str:
        return f"PLAINTEXT://127.0.0.1:{self._port}"
