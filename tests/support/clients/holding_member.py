"""A member of a share group in a process of its own, which a test kills while it holds records.

with HoldingMember(bootstrap, group, topic) as member:
    member.held()   # how many records it holds, once it holds some
    member.kill()   # kill -9: its connections are closed by the kernel, nothing is acknowledged
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType

from confluent_kafka import ShareConsumer

EXIT_TIMEOUT_S = 10


class HoldingMember:
    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), bootstrap, group, topic],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> HoldingMember:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()

    def held(self) -> int:
        """Waits for its first poll that brings something; how many records that were."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the member ended without a record"
        return int(line)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(EXIT_TIMEOUT_S)


def _hold(bootstrap: str, group: str, topic: str) -> None:
    consumer = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    while not (held := list(consumer.poll(1.0))):
        pass
    sys.stdout.write(f"{len(held)}\n")
    sys.stdout.flush()
    sys.stdin.read()  # until the test ends


if __name__ == "__main__":
    _hold(*sys.argv[1:])
