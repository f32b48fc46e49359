"""A real etcd for tests: one process with its data in a folder of its own, on free ports of 127.0.0.1.

`etcd` is Debian's package etcd-server. Where it is missing and this runs as root on Debian, it is installed, without
its service being started; else Missing says what to do.
"""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import time
from pathlib import Path

from support.environment.free_ports import free_port
from support.environment.installation import alone, debian_program

START_TIMEOUT_S = 30


def require_etcd() -> str:
    """The path of `etcd`; installs it where it is missing and that is possible."""
    with alone():
        return debian_program(["etcd"], "etcd-server")


class EtcdServer:
    """One etcd; `endpoint` is where clients reach it. Several at once are each a cluster of its own."""

    def __init__(self, folder: Path, *, arguments: tuple[str, ...] = ()) -> None:
        """`arguments` are etcd's own, such as --cert-file=..., which makes clients speak TLS."""
        self._binary = require_etcd()
        self._folder = folder
        self._arguments = arguments
        client, self._peer, self._metrics = (free_port() for _ in range(3))
        self.endpoint = f"127.0.0.1:{client}"
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def _start(self) -> None:
        scheme = "https" if any(one.startswith("--cert-file") for one in self._arguments) else "http"
        url, peer_url = f"{scheme}://{self.endpoint}", f"http://127.0.0.1:{self._peer}"
        command = [
            self._binary,
            "--name=test",
            f"--data-dir={self._folder / 'data'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=test={peer_url}",
            f"--listen-metrics-urls=http://127.0.0.1:{self._metrics}",
            "--logger=zap",
            *self._arguments,
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=self._folder)
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        """Until it has a leader and answers, which its health page says."""
        assert self._process is not None
        until = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until and self._process.poll() is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._metrics, timeout=1)
            try:
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            finally:
                connection.close()
            time.sleep(0.02)
        self.stop()
        raise RuntimeError(f"etcd did not start: {(self._folder / 'log').read_text()[-2000:]}")

    def kill(self) -> None:
        """As when its machine fails."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def restart(self) -> None:
        """Killed, and started again with its data and at its address."""
        self.kill()
        self._start()

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)  # until all of its threads stand still

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.kill()
