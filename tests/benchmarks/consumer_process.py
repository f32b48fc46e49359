"""A consumer of a benchmark in a process of its own, which writes lines and ends when its standard input is closed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

from benchmarks.endpoints import client_settings

TESTS = Path(__file__).resolve().parent.parent


class ConsumerProcess:
    """Runs a module of this package with the client's settings and `arguments`; `heard` gets each line, on a thread."""

    def __init__(self, module: str, bootstrap: str, *arguments: str) -> None:
        command = [sys.executable, "-m", module, json.dumps(client_settings(bootstrap)), *arguments]
        self.process = subprocess.Popen(command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def heard(self, line: str) -> None:
        raise NotImplementedError

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.heard(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
