"""A wall clock that a test steps, for processes that are started with `variables` (libfaketime, Debian's libfaketime).

Monotonic clocks go on as they are, as on a machine whose wall clock an administrator or NTP sets.
"""

from __future__ import annotations

from pathlib import Path

from support.environment.unavailable import unavailable

LIBRARY = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


class SteppedClock:
    """`step_to` sets all processes' clocks by so many seconds from the machine's; they look at `file` at each call."""

    def __init__(self, file: Path) -> None:
        if not LIBRARY.exists():
            unavailable("it sets clocks with libfaketime (apt-get install libfaketime)")
        self._file = file
        self.step_to(0.0)

    @property
    def variables(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def step_to(self, offset_s: float) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{offset_s:+.0f}s\n")
        fresh.replace(self._file)
